"""Where workloads run: starting jobs' supervisors, and proof that a sandbox is gone."""
