"""What things are called towards people, and what helps against them: tables of words (pure)."""

from __future__ import annotations

SAVED_HANDLES = frozenset(
    {"eventfd", "eventpoll", "signalfd", "timerfd", "inotify", "fanotify", "pidfd"}
)
"""What CRIU saves of the kernel's nameless things; all others it refuses."""

HANDLES = {
    "io_uring": "io_uring, the kernel's fast way to files and network",
    "userfaultfd": "a handler of memory faults (userfaultfd)",
    "perf_event": "a performance counter of a profiler (perf)",
    "kvm-vm": "a virtual machine (KVM)",
    "kvm-vcpu": "a processor of a virtual machine (KVM)",
    "bpf-map": "a table of a kernel program (BPF)",
    "bpf-prog": "a kernel program (BPF)",
    "bpf_link": "a kernel program (BPF)",
    "landlock-ruleset": "a set of access rules (Landlock)",
    "seccomp notify": "a system-call filter of another program (seccomp)",
    "fscontext": "a file system that is being set up",
    "mount": "a file system that is being set up",
}
END_IT = "End this program, or let it close it."

SAVED_DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 2)})
"""null, zero, full, random, urandom, ptmx by (major, minor)."""

TERMINALS = frozenset({3, *range(136, 144)})
"""Major numbers of pseudo-terminals."""

OWN_TERMINAL = (5, 0)
"""/dev/tty: whatever terminal the program belongs to."""

DEVICES = (
    ("/dev/nvidia", "the GPU"),
    ("/dev/dri/", "the graphics card"),
    ("/dev/kfd", "the GPU"),
    ("/dev/infiniband/", "the fast network (InfiniBand)"),
    ("/dev/kvm", "virtual machines"),
    ("/dev/fuse", "a file system of its own (FUSE)"),
    ("/dev/net/tun", "a network tunnel"),
    ("/dev/video", "the camera"),
    ("/dev/snd/", "sound"),
)

SAVED_PROTOCOLS = frozenset(
    {
        *(
            "TCP",
            "TCPv6",
            "UDP",
            "UDPv6",
            "UDP-Lite",
            "UDPLITEv6",
            "RAW",
            "RAWv6",
            "PING",
            "PINGv6",
        ),
        *("UNIX", "UNIX-STREAM", "NETLINK", "PACKET"),
    }
)
"""Kinds of sockets that CRIU saves, as the kernel names them (system.sockprotoname)."""

UNWATCHED = frozenset({"proc", "sysfs"})
"""File systems whose files CRIU cannot find again for an inotify watch."""

NAMESPACES = {
    "user": "user accounts of its own (a user namespace, as containers have)",
    "pid": "process numbers of its own (a PID namespace, as containers have)",
    "time": "a clock of its own (a time namespace)",
}


LONGEST_COMMAND = 80
"""Of a command line: enough to tell programs apart."""


def handle_of(name: str) -> str:
    """`io_uring` of `anon_inode:[io_uring]`, `bpf-map` of `anon_inode:bpf-map` (pure)."""
    return name.removeprefix("anon_inode:").removeprefix("[").removesuffix("]")


def device_words(name: str) -> str:
    """What a device file is to a researcher, with its name."""
    for beginning, words in DEVICES:
        if name.startswith(beginning):
            return f"{words} ({name})"
    return f"the device {name}"
