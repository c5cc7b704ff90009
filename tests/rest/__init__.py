"""An Iceberg REST catalog on loopback: Iceberg's own, over a file of SQLite, in a process that ends with this one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

POM = Path(__file__).parent / "pom.xml"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its address. The tables lie in the folder, and are there again for the next server."""
    jars = folder / "jars"
    copy = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run(copy, check=True)
    hadoop = Path(pyspark.__file__).parent / "jars" / "hadoop-client-*"
    port, token = launch_gateway(
        classpath=f"{jars}/*:{':'.join(map(str, hadoop.parent.glob(hadoop.name)))}",
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    jvm = gateway.jvm
    catalog = jvm.org.apache.iceberg.jdbc.JdbcCatalog()
    catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
    properties = {
        "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "jdbc.schema-version": "V1",
        "warehouse": (folder / "tables").as_uri(),
        "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }
    catalog.initialize("rest", properties)
    servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog))
    every = jvm.org.eclipse.jetty.servlet.ServletContextHandler()
    every.addServlet(jvm.org.eclipse.jetty.servlet.ServletHolder(servlet), "/*")
    server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(every)
    server.start()
    try:
        yield str(server.getURI().toString()).rstrip("/")
    finally:
        gateway.shutdown()
