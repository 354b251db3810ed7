"""Send this node's CPU, memory and network to CloudWatch once a minute, by the machine's own role."""

import os
import sys
import time

import botocore.session
import psutil
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

EVERY = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
OWN = [{"Name": name, "Value": os.environ[f"TRAINYARD_{name.upper()}"]} for name in ("Stack", "Node")]


def network() -> list[int]:
    """Bytes received and sent since the boot, without loopback."""
    found = [count for name, count in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    return [sum(count.bytes_recv for count in found), sum(count.bytes_sent for count in found)]


def main() -> None:
    """Send them every EVERY seconds, for ever; what CloudWatch does not take is printed and lost."""
    region = os.environ.get("TRAINYARD_REGION", "us-east-1")
    settings = Config(region_name=region, connect_timeout=5, read_timeout=10)
    cloudwatch = botocore.session.get_session().create_client("cloudwatch", config=settings)
    psutil.cpu_percent()  # each call measures since the previous one
    while True:
        before = network()
        time.sleep(EVERY)
        received, sent = ((now - then) / EVERY for now, then in zip(network(), before, strict=True))
        values = [
            ("CPUUtilization", psutil.cpu_percent(), "Percent"),
            ("MemoryUtilization", psutil.virtual_memory().percent, "Percent"),
            ("NetworkIn", received, "Bytes/Second"),
            ("NetworkOut", sent, "Bytes/Second"),
        ]
        data = [{"MetricName": name, "Dimensions": OWN, "Value": value, "Unit": unit} for name, value, unit in values]
        try:
            cloudwatch.put_metric_data(Namespace="Trainyard", MetricData=data)
        except (BotoCoreError, ClientError) as error:
            print(f"metrics not sent: {error}", flush=True)


main()
