"""GPU state of a sandbox's programs: into host memory before a dump, back onto GPUs after a thaw.

The driver itself moves it (CUDA's checkpoint calls); here is when, for whom, and what undoes it. No
NVIDIA library is ever loaded into the process that looks after a session: a helper makes the calls
(`helper`, started by `driver`), so that one that hangs or crashes costs the helper. Where a sandbox
has no NVIDIA device, nothing is started or loaded at all. `model` is pure.
"""
