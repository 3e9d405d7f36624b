"""The policy's rules against hostile studies: each refuses what it names."""

from pathlib import Path

import pytest
import tomli_w
from silomix_client.approval.approve import approve, review
from silomix_client.config.policy_rules import LEAST_BATCH, LEAST_PEOPLE, Rules
from silomix_client.config.silo_config import SiloConfig, load
from silomix_client.errors import InvalidSiloConfig, OutsidePolicy
from silomix_lab.consortium.create import Consortium
from silomix_protocol.keys import fingerprint
from support.consortia import make_consortium
from support.silos import NOW, approved_silo, study_file, written

ANOTHER_KEY = "ab" * 32


def with_rules(made: Consortium, **rules: object) -> SiloConfig:
    policy = {"epsilon": 50.0, "delta": made.study.target.delta, "minimum_batch": 1, **rules}
    (made.silos[0].parent / "policy.toml").write_text(tomli_w.dumps(policy))
    return load(made.silos[0])


def keys(made: Consortium) -> dict[str, list[str]]:
    """The fingerprints of the study's own server and mixes."""
    study = made.study
    return {
        "servers": [fingerprint(study.server.sign_key).hex()],
        "mixes": [fingerprint(mix.sign_key).hex() for mix in study.mixes],
    }


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


HOSTILE = {  # rule of the policy, what a hostile study does, what its operator reads
    "minimum_people": ({"minimum_people": 41}, (b"", b""), "40 of your people.* at least 41"),
    "minimum_batch": (
        {"minimum_batch": 2},
        (b"minimum = 2", b"minimum = 1"),
        "as few as 1 reports, your policy asks for at least 2",
    ),
    "most_rounds": ({"most_rounds": 5}, (b"rounds = 5", b"rounds = 6"), "6 rounds.* allows 5"),
    "study_epsilon": (
        {"study_epsilon": 2.0},
        (b"epsilon = 2.0", b"epsilon = 2.01"),
        "cost epsilon 2.01 at your delta 1e-05, your policy allows 2 ",
    ),
    "study_epsilon behind another delta": (
        {"study_epsilon": 2.0},
        (b"epsilon = 2.0\ndelta = 1e-05", b"epsilon = 2.0\ndelta = 0.05"),
        "at your delta 1e-05, your policy allows 2 ",
    ),
    "losses": (
        {"losses": ["logistic", "squared"]},
        (b'loss = "logistic"', b'loss = "multinomial"\nclasses = 2'),
        "its loss, multinomial, is not one of your policy's",
    ),
    "algorithms": (
        {"algorithms": ["noisy-mb-sgd"]},
        (b'name = "noisy-mb-sgd"', b'name = "one-pass-mb-sgd"'),
        "its algorithm, one-pass-mb-sgd, is not one of your policy's",
    ),
    "require_person_column": (
        {"require_person_column": True},
        (b"", b""),
        "does not say which column names a person",
    ),
}


def test_a_study_that_names_persons_is_what_require_person_column_asks_for(
    consortium: Consortium,
) -> None:
    config = with_rules(consortium, require_person_column=True)
    data = config.folder / "data.csv"
    header, *rows = data.read_text().splitlines()
    people = [f"{row},{number}" for number, row in enumerate(rows)]
    data.write_text("\n".join([f"{header},mrn", *people]) + "\n")
    named = b'[task]\nperson = "mrn"\nlabel_combine = "any"\n'
    content = study_file(consortium).replace(b"[task]\n", named)
    content = content.replace(b", low = ", b', combine = "mean", low = ')
    assert len(review(config, content).records) == 40


@pytest.mark.parametrize(("rule", "change", "told"), HOSTILE.values(), ids=HOSTILE)
def test_a_study_beyond_a_rule_is_refused_and_leaves_no_trace(
    consortium: Consortium, rule: dict[str, object], change: tuple[bytes, bytes], told: str
) -> None:
    content = changed(study_file(consortium), *change)
    config = with_rules(consortium, **rule)
    with pytest.raises(OutsidePolicy, match=told):
        review(config, content)
    assert written(config) == ([], {})
    review(with_rules(consortium), content)  # it was this rule that refused


def test_a_study_at_every_limit_is_approved(consortium: Consortium) -> None:
    config = with_rules(
        consortium,
        minimum_people=40,
        minimum_batch=2,
        most_rounds=5,
        study_epsilon=2.0,
        losses=["logistic"],
        algorithms=["noisy-mb-sgd"],
        **keys(consortium),
    )
    approve(config, review(config, study_file(consortium)), NOW)


@pytest.mark.parametrize("party", ["servers", "mixes"])
def test_a_party_under_a_known_name_with_another_key_is_refused(
    consortium: Consortium, party: str
) -> None:
    """The name is the study author's choice; only the key is held against the policy."""
    allowed = keys(consortium)
    allowed[party][-1] = ANOTHER_KEY
    with pytest.raises(
        OutsidePolicy, match=r"the key of its (server, server|mix mix-2), is|is not"
    ):
        review(with_rules(consortium, **allowed), study_file(consortium))


def test_one_foreign_mix_among_allowed_ones_is_refused(consortium: Consortium) -> None:
    first, second = keys(consortium)["mixes"]
    with pytest.raises(OutsidePolicy, match="mix mix-2 is not one of"):
        review(with_rules(consortium, mixes=[first]), study_file(consortium))
    review(with_rules(consortium, mixes=[second, first.upper()]), study_file(consortium))


def test_all_objections_are_told_at_once(consortium: Consortium) -> None:
    config = with_rules(consortium, minimum_people=41, most_rounds=4, losses=["squared"])
    with pytest.raises(OutsidePolicy) as caught:
        review(config, study_file(consortium))
    assert len(str(caught.value).split("; ")) == 3


def test_a_policy_that_says_nothing_asks_for_eleven_people(tmp_path: Path) -> None:
    """Failing closed: a forgotten line is a floor, not the lack of one."""
    made = make_consortium(tmp_path / "c", records=(LEAST_PEOPLE - 1, 40))
    with pytest.raises(OutsidePolicy, match="10 of your people, your policy asks for at least 11"):
        review(with_rules(made), study_file(made))
    review(with_rules(made, minimum_people=10), study_file(made))
    assert Rules().minimum_people == LEAST_PEOPLE == 11


def test_a_policy_that_says_nothing_lets_no_single_other_hospital_single_out_ours(
    consortium: Consortium,
) -> None:
    policy = consortium.silos[0].parent / "policy.toml"
    policy.write_text("epsilon = 50.0\ndelta = 1e-5\n")
    with pytest.raises(
        OutsidePolicy, match=r"mixes as few as 2 reports, your policy asks for at least 3"
    ):
        review(load(consortium.silos[0]), study_file(consortium))
    three = changed(study_file(consortium), b"minimum = 2", b"minimum = 3")
    assert review(load(consortium.silos[0]), three)
    assert Rules().minimum_batch == LEAST_BATCH == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("minimum_records = 50", "unknown key: minimum_records"),
        ("minimum_people = 0", "minimum_people must be at least 1"),
        ("minimum_batch = 0", "minimum_batch must be at least 1"),
        ("most_rounds = 0", "most_rounds must be at least 1"),
        ("study_epsilon = 0", "study_epsilon must be above 0"),
        ("study_epsilon = nan", "study_epsilon: expected a finite number"),
        ('losses = ["logistics"]', "losses: 'logistics' is not one of"),
        ('losses = "logistic"', "losses: expected a list of strings"),
        ('algorithms = ["sgd"]', "algorithms: 'sgd' is not one of"),
        ('servers = ["server"]', "servers: 'server' is not the fingerprint of a key"),
        (f'mixes = ["{"0" * 63}g"]', "is not the fingerprint of a key"),
        ("require_person_column = 1", "require_person_column: expected true or false"),
        ("hours = []", "hours: name at least one span"),
        ('hours = ["always"]', "hours: 'always' is not like"),
        ('hours = ["mon 25:00-26:00"]', "a span lies between 00:00 and 24:00"),
        ('hours = ["mon 08:00-08:00"]', "a span lies between 00:00 and 24:00"),
        ('hours = ["mon-xyz 08:00-09:00"]', "is not like"),
        ('hours = ["mon 08:00-09:00"]\ntime_zone = "Mars/Olympus"', "is not known on this machine"),
        ('hours = ["mon 08:00-09:00"]\ntime_zone = "../../etc"', "is not known on this machine"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_by_name(
    consortium: Consortium, line: str, told: str
) -> None:
    path = consortium.silos[0].parent / "policy.toml"
    path.write_text(f"epsilon = 2.0\ndelta = 1e-5\n{line}\n")
    with pytest.raises(InvalidSiloConfig) as caught:
        load(consortium.silos[0])
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["policy.toml", "silo.toml", "", "state", "state/ledger.sqlite"])
def test_a_policy_that_others_could_loosen_is_refused_at_the_next_lease_too(
    consortium: Consortium, name: str
) -> None:
    config = approved_silo(consortium)
    path = config.folder / name
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(InvalidSiloConfig, match="other users could change it"):
        load(consortium.silos[0])
    if name != "silo.toml":  # which a running silo does not read again
        with pytest.raises(InvalidSiloConfig, match="other users could change it"):
            config.reread_policy()
