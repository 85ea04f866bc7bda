"""`python -m reclaimer`."""

from reclaimer.app import main

main()
