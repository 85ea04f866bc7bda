"""Brings what a machine lacks into the state folder, started as a file on its bare `python3`.

Standard library only, and nothing of the machine's own packages is touched; the one exception,
Chromium and a C compiler for the tests, is announced and listed by `hubernate doctor`. Order: look
at the machine (`machine`), say what comes and how long it takes, then the steps (`steps`), each with
a stamp so that the next run passes in milliseconds.
"""
