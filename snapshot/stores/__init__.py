"""Object stores: one contract (`base.Store`), S3 and a directory, and a wrapper that tries again.

A store knows keys and bytes, nothing of snapshots; it never retries by itself.
"""
