"""What the controller can do, a file for each operation: what it decides (`plan_*`, checks: pure functions of the
cluster's state) and what it does in the controller's task (a class, or a function that takes the `ControllerContext`).

Several operations decide by `topics`, `placement`, `leadership` and `plan`, which are pure.
"""
