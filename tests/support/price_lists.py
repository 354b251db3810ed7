"""The providers' price lists on loopback, in their documented forms: AWS's offer files, Azure's Retail Prices."""

from __future__ import annotations

import gzip
import io
import json
import urllib.parse

from http_server import Answer, Asked

COLUMNS = [
    *("SKU", "OfferTermCode", "RateCode", "TermType", "PriceDescription", "EffectiveDate", "StartingRange"),
    *("EndingRange", "Unit", "PricePerUnit", "Currency", "RelatedTo", "LeaseContractLength", "PurchaseOption"),
    *("OfferingClass", "Product Family", "serviceCode", "Location", "Location Type", "Instance Type", "Tenancy"),
    *("Operating System", "usageType", "operation", "CapacityStatus", "Pre Installed S/W"),
    *("Storage Type", "Deployment_option", "FileSystemType", "ThroughputCapacity"),
]
META = (
    '"FormatVersion","v1.0"\n"Disclaimer","as it is, ""quoted"", here"\n'
    '"Publication Date","2027-02-01T00:00:00Z"\n"Version","1"\n'
)
INSTANCE = {
    "Instance Type": "m7i.large",
    "Tenancy": "Shared",
    "Operating System": "Linux",
    "operation": "RunInstances",
    "CapacityStatus": "Used",
    "Pre Installed S/W": "NA",
    "usageType": "BoxUsage:m7i.large",
}


LUSTRE = {
    "Product Family": "Storage",
    "FileSystemType": "Lustre",
    "Deployment_option": "Persistent",
    "Storage Type": "SSD",
    "ThroughputCapacity": "125",
}
ROUTE_53 = [
    {"usageType": "HostedZone", "PricePerUnit": "0.55", "EndingRange": "25"},
    {"usageType": "HostedZone", "PricePerUnit": "0.11", "StartingRange": "25"},
    {"usageType": "DNS-Queries", "PricePerUnit": "0.0000004"},
]
"""The file of all regions: a hosted zone is in no region's."""


def offer(code: str, *rows: dict[str, str]) -> bytes:
    text = io.StringIO()
    text.write(f'{META}"OfferCode","{code}"\n')
    text.write(",".join(f'"{name}"' for name in COLUMNS) + "\n")
    for row in rows:
        full = {"TermType": "OnDemand", "Currency": "USD", "StartingRange": "0", "EndingRange": "Inf", **row}
        text.write(",".join(f'"{full.get(name, "")}"' for name in COLUMNS) + "\n")
    return text.getvalue().encode()


def aws_offers(asked: Asked) -> Answer:
    if asked.path == "/offers/AmazonRoute53/current/index.csv":
        return Answer(body=offer("AmazonRoute53", *ROUTE_53))
    _, _, code, _, region, _ = asked.path.split("/")
    prefix = {"us-east-1": "", "us-west-2": "USW2-", "eu-west-1": "EU-"}[region]
    rows = {
        "AmazonEC2": [
            {**INSTANCE, "PricePerUnit": "9.9", "Tenancy": "Dedicated"},
            {**INSTANCE, "PricePerUnit": "9.9", "Operating System": "Windows"},
            {**INSTANCE, "PricePerUnit": "9.9", "CapacityStatus": "UnusedCapacityReservation"},
            {**INSTANCE, "PricePerUnit": "9.9", "Pre Installed S/W": "SQL Web"},
            {**INSTANCE, "PricePerUnit": "0.9", "TermType": "Reserved"},
            {**INSTANCE, "PricePerUnit": "0.1062500000000000001"},
            {"usageType": f"{prefix}EBS:VolumeUsage.gp3", "PricePerUnit": "0.0900000000", "Product Family": "Storage"},
            {"usageType": f"{prefix}EBS:VolumeP-IOPS.gp3", "PricePerUnit": "0.005"},
            {"usageType": f"{prefix}NatGateway-Hours", "PricePerUnit": "0.05"},
            {"usageType": f"{prefix}NatGateway-Bytes", "PricePerUnit": "0.045"},
            {"usageType": f"{prefix}EBS:SnapshotUsage", "PricePerUnit": "0.05"},
            {"usageType": f"{prefix}EBS:SnapshotUsage", "PricePerUnit": "0.06"},
        ],
        "AmazonVPC": [{"usageType": f"{prefix}PublicIPv4:InUseAddress", "PricePerUnit": "0.006"}],
        "AmazonEKS": [
            {"usageType": f"{prefix}AmazonEKS-Hours:perCluster", "PricePerUnit": "0.11"},
            {"usageType": f"{prefix}AmazonEKS-Hours:extendedSupport", "PricePerUnit": "0.6"},
        ],
        "awskms": [{"usageType": f"{region}-KMS-Keys", "PricePerUnit": "1.1"}],
        "AmazonECR": [{"usageType": f"{prefix}TimedStorage-ByteHrs", "PricePerUnit": "0.11"}],
        "AmazonS3": [
            {"usageType": f"{prefix}TimedStorage-ByteHrs", "PricePerUnit": "0.024", "EndingRange": "51200"},
            {"usageType": f"{prefix}TimedStorage-ByteHrs", "PricePerUnit": "0.022", "StartingRange": "51200"},
            {"usageType": f"{prefix}Tables-TimedStorage-ByteHrs", "PricePerUnit": "0.0265"},
        ],
        "AmazonCloudWatch": [
            {"usageType": f"{prefix}CW:MetricMonitorUsage", "PricePerUnit": "0.31", "EndingRange": "10000"},
            {"usageType": f"{prefix}CW:MetricMonitorUsage", "PricePerUnit": "0.1", "StartingRange": "10000"},
            {"usageType": f"{prefix}CW:Requests", "PricePerUnit": "0.00002"},
        ],
        "AmazonFSx": [
            {**LUSTRE, "PricePerUnit": "9.9", "ThroughputCapacity": "1000"},
            {**LUSTRE, "PricePerUnit": "9.9", "Storage Type": "HDD"},
            {**LUSTRE, "PricePerUnit": "9.9", "Deployment_option": "Scratch"},
            {**LUSTRE, "PricePerUnit": "9.9", "FileSystemType": "Windows"},
            {**LUSTRE, "PricePerUnit": "9.9", "Product Family": "Provisioned Throughput"},
            {**LUSTRE, "PricePerUnit": "9.9", "TermType": "Reserved"},
            {**LUSTRE, "PricePerUnit": "0.146"},
        ],
    }[code]
    body = offer(code, *rows)
    if code == "AmazonEC2" and "gzip" in asked.headers.get("accept-encoding", ""):
        return Answer(body=gzip.compress(body), headers={"Content-Encoding": "gzip"})
    return Answer(body=body)


def item(meter: str, price: float, **changes: object) -> dict[str, object]:
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": "eastus",
        "meterName": meter,
        "productName": "Virtual Machines Dsv6 Series",
        "skuName": meter,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": "Standard_D32s_v6",
        **changes,
    }


def azure_items(where: str) -> list[dict[str, object]]:
    if "'Virtual Machines'" in where:
        return [
            item("D32s v6", 9.9, productName="Virtual Machines Dsv6 Series Windows"),
            item("D32s v6 Low Priority", 0.3),
            item("D32s v6", 1.7),
            item("D32s v6 Spot", 0.5),
        ]
    if "P15 LRS Disk" in where:
        disk = {"productName": "Premium SSD Managed Disks", "serviceName": "Storage", "unitOfMeasure": "1/Month"}
        return [item("P15 LRS Disk", 40.0, **disk), item("P15 LRS Disk Mount", 2.0, **disk)]
    if "Hot LRS Data Stored" in where:
        blob = {"productName": "General Block Blob v2", "serviceName": "Storage"}
        return [
            item("Hot LRS Data Stored", 0.02, **blob),
            item("Hot LRS Data Stored", 0.019, tierMinimumUnits=51200.0, **blob),
        ]
    return []


def azure_answers(asked: Asked) -> Answer:
    """A page for each price, as if a page were that short."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(asked.path).query)
    found, at = azure_items(query["$filter"][0]), int(query.get("$skip", ["0"])[0])
    more = (
        f"http://{asked.headers['host']}{asked.path.partition('&')[0]}&$skip={at + 1}" if at + 1 < len(found) else None
    )
    return Answer(body=json.dumps({"Items": found[at : at + 1], "NextPageLink": more, "Count": 1}).encode())
