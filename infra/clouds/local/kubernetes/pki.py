"""The certificates and kubeconfigs of a stack's Kubernetes: who each program is to the others.

One certificate authority for each stack. What a certificate may do is its subject's: Kubernetes' own roles know the
names (https://kubernetes.io/docs/setup/best-practices/certificates/).
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

YEARS = 10
"""How long everything is valid. The stack's folder has it, and is gone with the stack."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str


def authority(name: str) -> Pair:
    """A new certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = _builder(subject, subject, key).add_extension(x509.BasicConstraints(True, None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Pair(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def certificate(by: Pair, user: str, group: str = "", names: Sequence[str] = ()) -> Pair:
    """A certificate for a program: to the API it is `user` in `group`, to its clients a server of these names."""
    signer = serialization.load_pem_private_key(by.key.encode(), None)
    issuer = x509.load_pem_x509_certificate(by.certificate.encode())
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    both = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = _builder(_name(user, group), issuer.subject, key).add_extension(
        x509.ExtendedKeyUsage(both), critical=False
    )
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    if names:
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        builder = builder.add_extension(alternatives, critical=False)
    return Pair(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(key))


def signing_key() -> tuple[str, str]:
    """(private, public) key, as PEM, that signs the tokens of service accounts."""
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _key_pem(key), public.decode()


def kubeconfig(server: str, by: str, pair: Pair, namespace: str = "default") -> str:
    """A kubeconfig (JSON is YAML) for a server whose certificate authority is `by`, as PEM."""

    def data(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    name = "trainyard"
    config = {
        **{"apiVersion": "v1", "kind": "Config", "current-context": name},
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": data(by)}}],
        "users": [
            {
                "name": name,
                "user": {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)},
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
    }
    return json.dumps(config, indent=2) + "\n"


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    # An hour back: a node's clock may be a little behind.
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    return builder.not_valid_after(now + datetime.timedelta(days=365 * YEARS))


def _name(user: str, group: str = "") -> x509.Name:
    organisation = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*organisation, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(made: x509.Certificate) -> str:
    return made.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none).decode()
