"""Program `python -m spawner.launch_job --site FILE --request FILE`: start a job's supervisor.

The scheduler calls it through an argument vector of its configuration. The request is a JSON object
`{"spec": WorkloadSpec, "lease": Lease, "credential": "…", "adopt": false}`, readable by root only.
Prints the supervisor's process as JSON (`{"pid": …, "started": …}`). Exit status 2: the request can
never be carried out (one plain sentence on standard error); 1: it was not started this time.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scheduler_bridge.model.workload import Lease, WorkloadSpec
from snapshot.model import Process
from spawner.identity import IdentityBook, NameRefusedError
from spawner.local_order import Placed, SupervisorNotStartedError, job_order, start_supervisor
from spawner.site import LocalSite, read_site


@dataclass(frozen=True, slots=True)
class Request:
    """What the scheduler asks for."""

    spec: WorkloadSpec
    lease: Lease
    credential: str
    adopt: bool = False


_REQUEST = TypeAdapter(Request)


def book_of(site: LocalSite) -> IdentityBook:
    """The accounts of a site."""
    return IdentityBook(
        site.users_file, homes=site.homes_directory, first_inner_root=site.first_inner_root
    )


def launch(site: LocalSite, request: Request) -> Process:
    """Compose the order and start the supervisor. Raises `NameRefusedError`, `ValueError`,
    `SupervisorNotStartedError`."""
    book = book_of(site)
    if not request.spec.command:
        raise ValueError(f"The job {request.spec.name!r} has no command.")
    order = job_order(
        site,
        Placed(request.spec, request.lease, request.credential),
        book.account(request.spec.user),
        inner_root=book.inner_root(request.lease.workload_id),
        adopt=request.adopt,
    )
    return start_supervisor(order, python=site.python)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="spawner.launch_job", description=__doc__)
    parser.add_argument("--site", required=True, type=Path)
    parser.add_argument("--request", required=True, type=Path)
    arguments = parser.parse_args()
    try:
        request = _REQUEST.validate_json(arguments.request.read_bytes())
        process = launch(read_site(arguments.site), request)
    except ValidationError as error:
        # Not the error's text: it quotes its input, and the input holds the credential.
        fields = ", ".join(sorted({".".join(map(str, e["loc"])) for e in error.errors()}))
        sys.stderr.write(f"The request or the site is wrong in: {fields}\n")
        return 2
    except (NameRefusedError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (SupervisorNotStartedError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(process)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
