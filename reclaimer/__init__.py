"""Who is idle, who is warned, who should be suspended.

What lives here: the reading of telemetry, the pure judgement (`idleness`, `policy`), the policy file
and the loop that carries verdicts to the scheduler as desired state. What never does: touching a
session. Of the scheduler it sees only the client, the model, the contract and the errors.
"""
