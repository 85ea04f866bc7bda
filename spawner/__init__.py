"""What the Hub sees, and the supervisor of sessions and jobs.

May import `snapshot` and `scheduler_bridge.{client,model,plugin,errors}`; never the scheduler's
engine, the reclaimer or `hub_config`.
"""
