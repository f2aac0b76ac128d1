"""`page`: the cluster's cards in a browser, from one's own machine or in a pod."""

import asyncio
from pathlib import Path

import click

from gpu_device_plugin.cli.kubeconfig_options import Listing, listing
from gpu_device_plugin.cli.program import until_sigterm
from gpu_device_plugin.errors import ConfigError, clip


def _label_key(text: str) -> str:
    from gpu_device_plugin.domain.models.profile_rules import is_label_key

    if text and not is_label_key(text):
        wanted = "wanted the key of a label, such as team or example.com/team"
        raise click.BadParameter(f"{clip(text)!r} is not valid: {wanted}")
    return text


team_label_option = click.option(
    "--team-label",
    metavar="KEY",
    type=_label_key,
    default="",
    help="Count by this label of the pods, for instance team.",
)


@click.command()
@click.option(
    "--address",
    default="127.0.0.1:9448",
    metavar="HOST:PORT",
    show_default=True,
    help="Where to listen. On any address but a loopback one each request needs a bearer token.",
)
@click.option(
    "--prometheus",
    metavar="URL|NAMESPACE/SERVICE:PORT",
    default="",
    help="Prometheus that knows what slices use.",
)
@click.option(
    "--grafana",
    metavar="URL",
    default="",
    help="Link pods and nodes to this dashboard, whose variables are namespace and node.",
)
@team_label_option
@click.option("--name", metavar="NAME", default="", help="Name of the cluster in the heading.")
@click.option(
    "--tls-cert-file",
    type=click.Path(path_type=Path),
    help="Serve HTTPS with this certificate, PEM.",
)
@click.option("--tls-key-file", type=click.Path(path_type=Path), help="Its private key.")
@listing("-n -A")
def page(
    address: str,
    name: str,
    tls_cert_file: Path | None,
    tls_key_file: Path | None,
    listing: Listing,
    **shown: str,
) -> None:
    """Show nodes, cards and slices in a browser.

    It ends with Ctrl-C. It only reads, with the rights of your kubeconfig: list and watch nodes and pods, get pods,
    list Events. On a loopback address everybody on this machine may look. On any other address
    each request needs a bearer token whose owner may list nodes, pods and Events (TokenReview and
    SubjectAccessReview).
    """
    from gpu_device_plugin.page.run_page import PageSettings, run_page

    if bool(tls_cert_file) != bool(tls_key_file):
        raise ConfigError("--tls-cert-file and --tls-key-file go together")
    settings = PageSettings(
        address=address,
        cluster=name or listing.cluster.context,
        namespace=listing.namespace,
        **shown,
        certificate=tls_cert_file,
        key=tls_key_file,
    )
    scheme, host = "https" if tls_cert_file else "http", address.rpartition(":")[0] or "0.0.0.0"  # noqa: S104 what is said

    def tell(port: int) -> None:
        click.echo(f"the page: {scheme}://{host}:{port}/")

    asyncio.run(until_sigterm(run_page(settings, listing.cluster.api(), tell)))
