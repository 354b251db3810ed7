"""The policy pack: what may be declared, judged on declarations alone.

rule.py            what a rule is, and how one is applied
unknown.py         values that are not known yet
machines.py        metadata service, passwords, Trusted Launch, launch templates
volumes.py         encrypted, and gone with their node
images.py          pinned
openings.py        what is let in, and from where
networks.py        descriptions, default group, flow logs, a firewall on every subnet
buckets.py         S3
accounts.py        Azure storage accounts
access.py          IAM and Azure roles
leaks.py           secrets in user data
tags.py            stack, owner and expiry on all that is taggable
pack.py            all of them
__main__.py        the same under `pulumi preview --policy-pack infra/policy`

A rule is a pure function of what was declared: the tests apply it without an engine.
"""
