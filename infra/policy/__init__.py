"""The policy pack: rules about declared resources, most of them rows of tables.

`pack` has all of them; `__main__` runs them under `pulumi preview --policy-pack infra/policy`. A rule is a pure
function of the declarations, so the tests apply it without an engine.
"""
