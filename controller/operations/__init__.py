"""The operations of the controller, a file each: its decision (`plan_*`, checks: pure functions of the cluster's state)
and its execution in the controller's task (a class, or a function that takes the `ControllerContext`). Several
operations use `topic_checks`, `placement` and `leadership`, which are pure, as is `controller/plan.py`.
"""
