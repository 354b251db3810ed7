"""The stack's repository of container images. A tag stays what it was pushed as; `destroy` removes the images."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.clouds.aws.names import named, titled
from infra.config.settings import Settings

KEPT = 10
"""Newest images that are kept: one of the training job has some 10 GB."""


def declare(settings: Settings, opts: pulumi.ResourceOptions) -> aws.ecr.Repository:
    """Declare the repository, and the rule that removes images beyond the newest KEPT."""
    made = aws.ecr.Repository(
        "images",
        name=named(settings, "images"),
        image_tag_mutability="IMMUTABLE",
        image_scanning_configuration=aws.ecr.RepositoryImageScanningConfigurationArgs(scan_on_push=True),
        encryption_configurations=[aws.ecr.RepositoryEncryptionConfigurationArgs(encryption_type="AES256")],
        force_delete=True,  # an image is made again from the checkout
        tags=titled(settings),
        opts=opts,
    )
    rule = {
        "rulePriority": 1,
        "description": f"the newest {KEPT}",
        "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": KEPT},
        "action": {"type": "expire"},
    }
    aws.ecr.LifecyclePolicy("images-kept", repository=made.name, policy=json.dumps({"rules": [rule]}), opts=opts)
    return made
