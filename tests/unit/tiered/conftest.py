"""A local S3 server for the tests of the cold tier."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import pytest

from stratamq.config import TieredConfig


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 server in a thread of this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_config(s3_endpoint: str) -> TieredConfig:
    """Settings for a new bucket there."""
    import boto3

    bucket = f"b{uuid.uuid4().hex[:12]}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=s3_endpoint, **keys).create_bucket(Bucket=bucket)
    return TieredConfig(
        url=f"s3://{bucket}/some/prefix", endpoint=s3_endpoint, access_key="a", secret_key="b", region="us-east-1"
    )
