"""aws-eks under mocks: its add-ons, who has which rights, and what is put into the cluster."""

from __future__ import annotations

from aws_eks_declared import NAME, objects, statements
from aws_mocks import FILE_SYSTEM
from aws_xeon_program import Program

from infra import training_operator
from infra.clouds.aws import eks
from infra.clouds.kube_client import path_of

pytest_plugins = ["aws_eks_program"]


def test_addons_are_pinned_and_come_when_they_can_run(eks_program: Program) -> None:
    ran = eks_program()
    found = {one.inputs["addonName"]: one for one in ran.of("eks/addon:Addon")}
    assert {name: one.inputs["addonVersion"] for name, one in found.items()} == eks.ADDONS
    for name, one in found.items():
        before = name in eks.BEFORE_NODES
        assert (one.name in ran["gpus"].needs and one.name in ran["system"].needs) == before, name
        assert ("system" in one.needs) == (not before), name


def test_pods_have_rights_by_identity_and_those_alone(eks_program: Program) -> None:
    ran = eks_program()
    given = {
        one.inputs["addonName"]: one.inputs["podIdentityAssociations"]
        for one in ran.of("eks/addon:Addon")
        if one.inputs.get("podIdentityAssociations")
    }
    assert {name: entry[0]["serviceAccount"] for name, entry in given.items()} == {
        **{"vpc-cni": "aws-node", "aws-fsx-csi-driver": "fsx-csi-controller-sa"},
    }
    assert ran["trainer-identity"].inputs["serviceAccount"] == ran.kubernetes.service_account
    for name in ("cni-role", "fsx-role", "trainer-role"):
        (trust,) = statements(ran, name, "assumeRolePolicy")
        assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"} and "sts:TagSession" in trust["Action"]
        cluster = f"arn:aws:eks:us-east-1:123456789012:cluster/{NAME}"
        assert trust["Condition"]["ArnEquals"] == {"aws:SourceArn": cluster}
    (mounts,) = statements(ran, "fsx-may-describe", "policy")
    assert mounts["Action"] == "fsx:DescribeFileSystems", "a driver that makes file systems would leave some"
    on_node = [one.inputs["policyArn"] for one in ran.of("iam/rolePolicyAttachment:RolePolicyAttachment")]
    assert not [arn for arn in on_node if arn.endswith("FullAccess")]


def test_the_file_system_is_a_volume_that_kubernetes_never_deletes(eks_program: Program) -> None:
    found = objects(eks_program())
    volume, claim = found["PersistentVolume/trainyard-fsx"]["spec"], found["PersistentVolumeClaim/fsx"]
    assert volume["csi"]["volumeHandle"] == FILE_SYSTEM and volume["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["csi"]["volumeAttributes"] == {"dnsname": f"{FILE_SYSTEM}.fsx.amazonaws.com", "mountname": "abcd"}
    assert claim["spec"]["volumeName"] == "trainyard-fsx" and claim["metadata"]["namespace"] == "trainyard"
    for one in (volume, claim["spec"]):
        assert one["storageClassName"] == "" and one["accessModes"] == ["ReadWriteMany"]


def test_plugins_run_on_the_workers_and_images_have_versions(eks_program: Program) -> None:
    found = objects(eks_program())
    for name in ("nvidia-device-plugin", "efa-device-plugin"):
        pod = found[f"DaemonSet/{name}"]["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == eks_program()["gpus"].inputs["labels"]
        assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    images = [
        container["image"]
        for one in found.values()
        if one["kind"] in ("DaemonSet", "Deployment")
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    assert len(images) == 3 and all(":v" in image for image in images)


def test_a_jobs_pods_may_end_pods_of_their_namespace_and_nothing_else(eks_program: Program) -> None:
    found = objects(eks_program())
    account, role, binding = (found[f"{kind}/trainer"] for kind in ("ServiceAccount", "Role", "RoleBinding"))
    assert {one["metadata"]["namespace"] for one in (account, role, binding)} == {"trainyard"}
    rights = {"pods": ["get", "list", "watch", "delete"], "pods/status": ["patch"]}
    assert role["rules"] == [{"apiGroups": [""], "resources": [what], "verbs": verbs} for what, verbs in rights.items()]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "trainer", "namespace": "trainyard"}]
    assert path_of(role) == "/apis/rbac.authorization.k8s.io/v1/namespaces/trainyard/roles/trainer"
    assert path_of(binding).endswith("/namespaces/trainyard/rolebindings/trainer")


def test_the_operator_is_for_pytorchjob_alone(eks_program: Program) -> None:
    found = {f"{one['kind']}/{one['metadata']['name']}": one for one in training_operator.objects()}
    assert found.items() <= objects(eks_program()).items()
    (container,) = found["Deployment/training-operator"]["spec"]["template"]["spec"]["containers"]
    assert "--enable-scheme=pytorchjob" in container["args"]
    (hook,) = found["ValidatingWebhookConfiguration/validator.training-operator.kubeflow.org"]["webhooks"]
    assert hook["rules"][0]["resources"] == ["pytorchjobs"] and hook["failurePolicy"] == "Fail"
    rules = found["ClusterRole/training-operator"]["rules"]
    assert not [rule for rule in rules if "*" in (*rule["verbs"], *rule["resources"])]


def test_objects_come_last_and_with_all_that_they_need(eks_program: Program) -> None:
    needed = eks_program().closure("objects")
    assert {"gpus", "system", "addon-coredns", "addon-aws-fsx-csi-driver", "operator-rights", "lustre-bucket"} <= needed
