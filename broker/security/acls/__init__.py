"""ACLs: what they are, what they allow, and how they are changed (KIP-11, KIP-290, KIP-679).

- `bindings.py`: ACLs and filters as values, and their names in znodes.
- `decision.py`: the index of all ACLs, and the decisions by it; pure.
- `authorizer.py`: `AclAuthorizer` remembers decisions until an ACL changes.
- `administration.py`: lists, creates and deletes ACLs for the handlers, within limits.

`controller/acls.py` keeps the ACLs in the metadata store and follows the changes of other brokers. `broker/parts.py`
imports this room only if `authorizer.class.name` is set.
"""
