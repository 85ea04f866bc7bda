"""The supervisor of one session or job: it starts, watches, suspends, resumes and proves it gone.

`python -m spawner.supervisor --order FILE` runs as root, outside the sandbox, in a process session
of its own, and needs neither Hub nor scheduler to keep a tree alive or to suspend it. What it is
told is in `order`, what it tells is in `status`; `control` serves it to root over a UNIX socket and
`client` asks there. What comes from inside the sandbox enters only through `inner`.
"""
