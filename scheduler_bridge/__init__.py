"""The global scheduler: truth about workloads, leases and quotas; training jobs; client.

What lives here: the model (pure values), the policy that plans (pure), the engine that carries plans
out, the durable store, the REST service and the client every other package talks to.
What never does: sandboxes, CRIU, the Hub's spawner. Supervisors are started through an argv template
from configuration. Others may import only `client`, `model`, `plugin` and `errors`.
"""
