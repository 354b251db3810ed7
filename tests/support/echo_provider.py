"""A stand-in for a cloud's Pulumi plugin: takes whatever is declared and asks nobody. For previews only.

    python tests/support/echo_provider.py aws-xeon        # prints its port, for PULUMI_DEBUG_PROVIDERS=aws:PORT

It merges the provider's default tags into tagsAll where pulumi-aws does (its provider/tags.go): in Check, so that this
is what a policy sees.
"""

from __future__ import annotations

import importlib
import json
import sys
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from planted_violations import KINDS
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from infra.policy.tags import AWS_WITHOUT


class Echo(provider_pb2_grpc.ResourceProviderServicer):
    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.tags: dict[str, str] = {}

    def Attach(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version="99.0.0")

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.DiffResponse()

    def Configure(self, request: Any, context: Any) -> Any:
        given = json_format.MessageToDict(request.args).get("defaultTags", "{}")
        self.tags = json.loads(given).get("tags", {})
        return provider_pb2.ConfigureResponse(acceptSecrets=False, supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:
        inputs = struct_pb2.Struct()
        inputs.CopyFrom(request.news)
        kind = request.urn.split("::")[2].split("$")[-1]
        if kind.startswith("aws:") and kind not in AWS_WITHOUT:
            own = json_format.MessageToDict(request.news).get("tags", {})
            inputs["tagsAll"] = {**self.tags, **own}
        return provider_pb2.CheckResponse(inputs=inputs)

    def Create(self, request: Any, context: Any) -> Any:
        """What a preview knows: the inputs, and that the rest comes later."""
        assert request.preview, "this provider makes nothing"
        kind, name = request.urn.split("::")[2].split("$")[-1], request.urn.split("::")[-1]
        inputs = json_format.MessageToDict(request.properties)
        args = MockResourceArgs(custom=True, typ=kind, name=name, inputs=inputs, provider="", resource_id="")
        properties = struct_pb2.Struct()
        properties.update({**inputs, **dict.fromkeys(self.kind.outputs(args), rpc.UNKNOWN)})
        return provider_pb2.CreateResponse(properties=properties)

    def Invoke(self, request: Any, context: Any) -> Any:
        args = MockCallArgs(request.tok, json_format.MessageToDict(request.args), "")
        answer = struct_pb2.Struct()
        answer.update(self.kind.invoked(args))
        return provider_pb2.InvokeResponse(**{"return": answer})

    def Cancel(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()


def main(cluster: str) -> None:
    module, kind = KINDS[cluster]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(
        Echo(getattr(importlib.import_module(module), kind)()), server
    )
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1])
