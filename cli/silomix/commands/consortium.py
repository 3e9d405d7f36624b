"""`silomix consortium`: a sample consortium, to look at and to try things on."""

from pathlib import Path
from typing import Annotated

import typer
from silomix_protocol.host.failure import failures
from silomix_protocol.host.terminal import show

from silomix.commands.options import Delta, Gate, Tokens
from silomix.text.literal_help import Commands

consortium = Commands(help="Set up a sample consortium.")


@consortium.command("init")
def consortium_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    silos: Annotated[int, typer.Option(min=2, max=200, help="Hospitals.")] = 3,
    mixes: Annotated[int, typer.Option(min=1, max=20, help="Mixes in the chain.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the study.")] = 40,
    epsilon: Annotated[float, typer.Option(help="ε of every silo's transcript.")] = 2.0,
    delta: Delta = 1e-6,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the server and each mix will run, for real machines: NAME=HOST, such as "
            "server=server.example.org and mix-1=192.0.2.7 (else all on this machine)."
        ),
    ] = None,
    gate: Gate = True,
    tokens: Tokens = True,
) -> None:
    """Make folders for a server, mixes and silos, with keys, configurations and sample data.

    Each folder has all that its machine needs, and a README.txt with the commands to type there.
    """
    from silomix_core.study.defaults import usual_minimum
    from silomix_core.study.specification import Batching, Specification
    from silomix_lab.choices.goal import LOGISTIC, usual_radius
    from silomix_lab.choices.specification import target_of
    from silomix_lab.consortium.machines import addresses_of, furnish
    from silomix_lab.demo.run_demo import CLIP, DemoOptions, prepare

    with failures():
        options = DemoOptions(
            out=folder,
            specification=Specification(
                algorithm="noisy-mb-sgd",
                most_rounds=rounds,
                radius=usual_radius(LOGISTIC),
                clip=CLIP,
                target=target_of(epsilon, delta),
                batching=Batching(usual_minimum(silos), gate=gate, tokens=tokens),
            ),
            silos=silos,
            mixes=mixes,
        )
        made, _ = prepare(options, addresses_of(host or [], mixes))
        furnish(made, alone=bool(host))
        show(f"made {folder}; first each silo's operator looks and approves:\n")
        for path in made.silos:
            show(f"  silomix silo approve {path} {path.parent / 'study.toml'}")
        show("\nthen, each in a terminal of its own:\n")
        for path in made.mixes:
            show(f"  silomix mix run {path}")
        for path in made.silos:
            show(f"  silomix silo run {path}")
        show(f"  silomix server run {made.server}")
        show("\nand, to renew certificates, invite and revoke:\n")
        show(f"  silomix authority run {made.authority}")
        if host:
            show("\nor each folder on its machine: copy it there and do what its README.txt says")
