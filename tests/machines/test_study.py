"""A consortium on ten machines, from the first invitation to the last line of the audit logs.

Slow lossy links, a hospital that is cut off for some rounds, a mix that is killed, certificates
that last less than the study.
"""

import os
import signal
from pathlib import Path

from cryptography import x509
from silomix_lab.consortium.create import Consortium
from silomix_lab.consortium.processes import Role
from support.machines import Weather, authority, found, in_turn, internet, spread
from support.processes import progress, server_logs, spending, wait_until

ROUNDS = 110
CERTIFICATE_S = 48.0  # renewed after 32 s
ACROSS_A_COUNTRY = Weather(latency_ms=30, jitter_ms=5, loss=0.01)  # one way


def test_from_invitations_to_a_model_over_a_network_as_it_is(tmp_path: Path) -> None:
    """A silo is cut off so shortly that no connection notices, and so long that rounds pass.

    What was asked of it meanwhile arrives when the partition is over, and costs it nothing.
    """
    folder = tmp_path / "c"
    with internet() as network, authority(network, folder, CERTIFICATE_S):
        network.set_weather(ACROSS_A_COUNTRY)
        made = found(network, folder, rounds=ROUNDS, deadline_s=3.0, people=(40, 50, 60))
        with spread(made, network) as system:
            system.wait_for_round(3)
            renewed = {name: renewals(made, name) for name in parties(made)}
            certificates = {name: serial(folder / name) for name in parties(made)}
            network.cut("silo-2")
            cut = len(progress(made))
            system.wait_for_round(cut + 5)
            network.join("silo-2")
            wait_until(lambda: " round_passed_over " in said(made, "silo-2"), "silo-2 is back")
            os.kill(system.mixes[0].child.pid, signal.SIGKILL)
            system.mixes[0].child.wait(10)
            system.processes.start(Role.MIX, made.mixes[0])
            wait_until(
                lambda: all(renewals(made, name) > renewed[name] for name in renewed),
                "everybody has another certificate",
            )
            assert len(progress(made)) < ROUNDS, "certificates were renewed after the study"
            assert not [
                name for name in parties(made) if serial(folder / name) == certificates[name]
            ]
            assert system.server_status(limit_s=300.0) == 0, system.all_logs()
        verify = "silo", "audit-log", "verify"
        commands = [(silo, (*verify, f"{silo}/silo.toml")) for silo in silos(made)]
        verified = in_turn(network, folder, commands)
    assert [each.split()[0] for each in verified] == ["verified"] * 3
    accepted = [int(line["accepted"]) for line in progress(made)]
    assert len(accepted) == ROUNDS
    assert accepted[:3] == [3, 3, 3]
    assert accepted[cut + 1 : cut + 5] == [2, 2, 2, 2]
    assert max(accepted[-5:]) == 3
    assert not set(charged(made, "silo-2")) & set(range(cut + 2, cut + 6))
    for silo, spent in zip(silos(made), spending(made), strict=True):
        assert len(set(charged(made, silo))) == len(charged(made, silo)) == spent.rounds
        assert spent.epsilon(made.study.target.delta) <= made.study.target.epsilon


# Helpers ------------------------------------------------------------------------------------------


def silos(made: Consortium) -> list[str]:
    return [path.parent.name for path in made.silos]


def parties(made: Consortium) -> list[str]:
    return ["server", *(path.parent.name for path in made.mixes), *silos(made)]


def said(made: Consortium, name: str) -> str:
    """A party's log; of the server with those of its children."""
    files = [made.folder / "logs" / f"{name}.log"]
    if name == "server":
        files += server_logs(made)
    return "".join(file.read_text() for file in files)


def charged(made: Consortium, silo: str) -> list[int]:
    """The rounds that a silo said it charged."""
    lines = said(made, silo).splitlines()
    charges = [line.partition(" round=")[2] for line in lines if " round_charged " in line]
    return [int(charge.split()[0]) for charge in charges]


def renewals(made: Consortium, name: str) -> int:
    return said(made, name).count(" certificate_renewed ")


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).serial_number
