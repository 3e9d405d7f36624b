"""A silo's own files: what is accepted, and that every refusal names the file and the key."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from silomix_client.config.policy_rules import Rules
from silomix_client.config.silo_config import MAIN, Policy, SiloConfig, load
from silomix_client.errors import InvalidSiloConfig
from silomix_core.accounting.budget import Accountant, Budget
from silomix_core.accounting.events import PrivacyTarget
from silomix_lab.consortium.create import Consortium
from support.consortia import csv_path


def silo_folder(folder: Path, silo: str = "", policy: str = "") -> Path:
    """silo.toml of a folder with a good configuration, unless told otherwise."""
    path = folder / "silo.toml"
    path.write_text(silo or 'name = "silo-1"\ndata = "data.csv"\npolicy = "policy.toml"\n')
    (folder / "policy.toml").write_text(policy or "epsilon = 3.0\ndelta = 1e-6\n")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidSiloConfig) as caught:
        load(path)
    return str(caught.value)


def test_the_files_that_a_consortium_is_made_with_are_accepted(consortium: Consortium) -> None:
    config = load(consortium.silos[0])
    assert config.name == "silo-1"
    assert csv_path(config.data) == consortium.silos[0].parent / "data.csv"
    assert config.policy == Policy(
        {MAIN: Budget(consortium.study.target)},
        rules=Rules(minimum_batch=consortium.study.batching.minimum),
    )


def test_relative_paths_start_at_the_folder_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    text = 'name = "a"\ndata = "../d.csv"\npolicy = "rules/p.toml"\n'
    (tmp_path / "rules" / "p.toml").write_text("epsilon = 1\ndelta = 1e-6\nminimum_people = 50\n")
    config = load(silo_folder(tmp_path, text))
    assert csv_path(config.data) == tmp_path / "../d.csv"
    assert config.policy.rules.minimum_people == 50


def test_the_state_folder_belongs_to_its_owner_only(tmp_path: Path) -> None:
    state = load(silo_folder(tmp_path)).state
    assert state == tmp_path / "state"
    assert state.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("key", ["seed", "noise", "Name", "epsilon"])
def test_an_unknown_key_of_the_silo_is_refused_by_name(tmp_path: Path, key: str) -> None:
    text = f'name = "a"\ndata = "d.csv"\npolicy = "policy.toml"\n{key} = 1\n'
    path = silo_folder(tmp_path, text)
    assert refusal(path) == f"{path}: unknown key: {key}"


@pytest.mark.parametrize("key", ["seed", "sigma", "clip", "Epsilon"])
def test_an_unknown_key_of_the_policy_is_refused_by_name(tmp_path: Path, key: str) -> None:
    path = silo_folder(tmp_path, policy=f"epsilon = 3.0\ndelta = 1e-6\n{key} = 1\n")
    assert refusal(path) == f"{tmp_path / 'policy.toml'}: unknown key: {key}"


@pytest.mark.parametrize("key", ["name", "data", "policy"])
def test_a_missing_key_of_the_silo_is_named(tmp_path: Path, key: str) -> None:
    lines = ['name = "a"', 'data = "d.csv"', 'policy = "policy.toml"']
    text = "\n".join(line for line in lines if not line.startswith(key))
    path = silo_folder(tmp_path, text)
    assert refusal(path) == f"{path}: missing key: {key} (a string)"


@pytest.mark.parametrize("key", ["epsilon", "delta"])
def test_a_missing_key_of_the_policy_is_named(tmp_path: Path, key: str) -> None:
    lines = ["epsilon = 3.0", "delta = 1e-6"]
    policy = "\n".join(line for line in lines if not line.startswith(key))
    path = silo_folder(tmp_path, policy=policy)
    assert refusal(path) == f"{tmp_path / 'policy.toml'}: missing key: {key} (a number)"


@pytest.mark.parametrize("key", ["name", "data", "policy"])
def test_a_key_of_another_type_is_named(tmp_path: Path, key: str) -> None:
    values = {"name": '"a"', "data": '"d.csv"', "policy": '"policy.toml"', key: "7"}
    path = silo_folder(tmp_path, "\n".join(f"{name} = {text}" for name, text in values.items()))
    assert refusal(path) == f"{path}: {key}: expected a string, got 7"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("epsilon", text) for text in ("0", "0.0", "-1", "nan", "inf", "100.1", '"3"', "true")),
        *(("delta", text) for text in ("0", "-1e-6", "0.1", "1", "nan", "-inf", '"x"', "[1e-6]")),
        *(("minimum_people", text) for text in ("1.5", '"50"', "true", "[]")),
    ],
)
def test_a_number_that_no_policy_can_mean_is_refused_by_name(
    tmp_path: Path, key: str, value: str
) -> None:
    numbers = {"epsilon": "3.0", "delta": "1e-6", "minimum_people": "50", key: value}
    policy = "\n".join(f"{name} = {text}" for name, text in numbers.items())
    message = refusal(silo_folder(tmp_path, policy=policy))
    assert message.startswith(f"{tmp_path / 'policy.toml'}: ")
    assert key in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == f"{tmp_path}/none.toml: No such file or directory"
    path = silo_folder(tmp_path)
    (tmp_path / "policy.toml").unlink()
    assert refusal(path) == f"{tmp_path}/policy.toml: No such file or directory"


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: Is a directory"


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"[[[", b"a = 1\na = 2\n"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = silo_folder(tmp_path)
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}: ")


def test_a_silo_configures_name_data_policy_syslog_and_network_and_nothing_else() -> None:
    known = {"name", "folder", "data", "policy", "policy_file", "syslog", "network"}
    assert {field.name for field in fields(SiloConfig)} == known
    assert {field.name for field in fields(Policy)} == {"budgets", "data", "rules"}


POPULATIONS = """
epsilon = 3.0
delta = 1e-6
accountant = "renyi"
[[populations]]
name = "children"
data = "children.csv"
epsilon = 1.0
delta = 1e-7
"""


def test_populations_have_budgets_and_data_of_their_own(tmp_path: Path) -> None:
    config = load(silo_folder(tmp_path, policy=POPULATIONS))
    assert config.policy.budgets == {
        MAIN: Budget(PrivacyTarget(3.0, 1e-6), Accountant.RENYI),
        "children": Budget(PrivacyTarget(1.0, 1e-7), Accountant.RENYI),
    }
    assert csv_path(config.data_of(MAIN)) == tmp_path / "data.csv"
    assert csv_path(config.data_of("children")) == tmp_path / "children.csv"
    with pytest.raises(InvalidSiloConfig, match="no population 'adults'; it has children"):
        config.data_of("adults")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"renyi"', '"magic"', "accountant: 'magic' is not one of gaussian, renyi"),
        ('name = "children"', 'name = ""', "different names"),
        ("epsilon = 1.0", "epsilon = 0.0", "populations.0.*epsilon must be above 0"),
        ('data = "children.csv"\n', "", "missing key: populations.0..data"),
        ("delta = 1e-7", "delta = 1e-7\nsigma = 1", "unknown key: populations.0..sigma"),
    ],
)
def test_a_wrong_population_is_refused_by_name(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in POPULATIONS
    assert re.search(message, refusal(silo_folder(tmp_path, policy=POPULATIONS.replace(old, new))))


def test_two_populations_with_the_same_data_are_refused(tmp_path: Path) -> None:
    policy = POPULATIONS.replace("children.csv", "../" + tmp_path.name + "/data.csv")
    assert "the same data" in refusal(silo_folder(tmp_path, policy=policy))
