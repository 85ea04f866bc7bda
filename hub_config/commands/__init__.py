"""Sub-commands of `hubernate`, one module per thing that is commanded.

Each module has `register(app)`. Commands talk to the scheduler as whoever runs them (`connection`),
name things as people do (`names`), print tables or JSON (`output`) and end with one plain line and
exit code 1 when something is refused (`errors`).
"""
