"""DescribeAcls, CreateAcls, DeleteAcls, where no authorizer is configured."""

from itertools import product

from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from compat_tests.differential.run import Run

CODES = (-1, 0, 1, 2, 3, 4, 99)
"""Of types of resources and patterns, of operations and permissions: among them UNKNOWN, ANY and numbers of nothing."""


def describe_acls(run: Run) -> None:
    for name, principal, host in product((None, "", "t"), (None, "", "User:a", "a"), (None, "*")):
        run.sweep(
            DescribeAclsRequest(
                resource_type_filter=1,
                resource_name_filter=name,
                pattern_type_filter=1,
                principal_filter=principal,
                host_filter=host,
                operation=1,
                permission_type=1,
            )
        )
    for code in CODES:
        for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            codes = {"resource_type_filter": 1, "operation": 1, "permission_type": 1, field: code}
            run.sweep(DescribeAclsRequest(**codes))  # type: ignore[arg-type]


def create_acls(run: Run) -> None:
    creation = {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
    texts = {"resource_name": "t", "principal": "User:a", "host": "*"}
    run.sweep(CreateAclsRequest(creations=[]))
    for code in CODES:
        for field in creation:
            changed = AclCreation(**{**creation, field: code}, **texts)  # type: ignore[arg-type]
            valid = AclCreation(**creation, **texts)  # type: ignore[arg-type]
            run.sweep(CreateAclsRequest(creations=[changed]), CreateAclsRequest(creations=[valid, changed]))
    for field, text in product(texts, ("", "a/b", "x" * 300, "ü")):
        run.sweep(CreateAclsRequest(creations=[AclCreation(**creation, **{**texts, field: text})]))  # type: ignore[arg-type]


def delete_acls(run: Run) -> None:
    codes = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    run.sweep(DeleteAclsRequest(filters=[]))
    for name in (None, "", "t"):
        filters = [DeleteAclsFilter(resource_name_filter=name, principal_filter=None, host_filter=None, **codes)]
        run.sweep(DeleteAclsRequest(filters=filters), DeleteAclsRequest(filters=filters * 2))
    for code in CODES:
        for field in codes:
            run.sweep(DeleteAclsRequest(filters=[DeleteAclsFilter(**{**codes, field: code})]))


SCENARIOS = (describe_acls, create_acls, delete_acls)
