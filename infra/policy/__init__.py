"""The policy pack: rules about declared resources.

rule.py             Rule and StackRule, and how they are applied
conditions.py       property paths and conditions, from which the tables are made
unknown.py          values that are not known yet
resource_types.py   the types that rules name
property_rules.py   table: conditions on a property of one resource
companion_rules.py  table: resources that must exist beside another, and where a value must come from
openings.py         what firewalls let in, and from where
access.py           IAM and Azure roles, bucket policies
leaks.py            secrets in user data
tags.py             stack, owner and expiry on all that is taggable
pack.py             all rules
__main__.py         the pack under `pulumi preview --policy-pack infra/policy`

A rule is a pure function of the declarations, so the tests apply it without an engine.
"""
