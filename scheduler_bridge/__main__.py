"""`python -m scheduler_bridge --config=FILE`."""

from scheduler_bridge.app import main

main()
