"""The policy pack: rules about what may be declared, which look at the declarations alone.

rule.py             what a rule is, and how one is applied
conditions.py       property paths and conditions, which the tables are made of
unknown.py          values that are not known yet
resource_types.py   the types that rules name
property_rules.py   table: a property of one resource must be so
companion_rules.py  table: what must stand beside a resource, and where a value must come from
openings.py         what is let in, and from where
access.py           IAM and Azure roles, bucket policies
leaks.py            secrets in user data
tags.py             stack, owner and expiry on all that is taggable
pack.py             all of them
__main__.py         the same under `pulumi preview --policy-pack infra/policy`

A rule is a pure function of what was declared: the tests apply it without an engine.
"""
