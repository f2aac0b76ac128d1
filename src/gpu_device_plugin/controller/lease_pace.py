"""How long the controller's Lease lasts, and how often it is renewed or asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeasePace:
    """client-go's three times.

    Attributes:
        lease_seconds: Others take over when nothing was renewed for so long, by their own clock.
        renew_seconds: The holder gives up when it could not renew for so long. What it has sent
            by then has to be over before `lease_seconds`.
    """

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0
