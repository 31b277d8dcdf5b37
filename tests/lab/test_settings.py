"""Settings: from the command line to the run and its loader, and from the files of older runs."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from labtools import TINY, tiny

import quarterturn as qt
from quarterturn_lab.cli.options import Options
from quarterturn_lab.data.dataset import Settings
from quarterturn_lab.errors import ConfigError, LabError
from quarterturn_lab.runs import loading
from quarterturn_lab.settings.config import checked, read
from quarterturn_lab.settings.experiments import EXPERIMENTS, config_for, settings_of, split_name
from quarterturn_lab.settings.networks import PLANKTON, edited
from quarterturn_lab.settings.options import HEADINGS, STAGES


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'roll-all-quarter'"):
        split_name("plankton/rol-all-quarter")
    with pytest.raises(ConfigError, match="did you mean 'plankton'"):
        split_name("planktn/baseline")
    with pytest.raises(LabError, match="names no row"):
        split_name("plankton")
    with pytest.raises(qt.OptionError, match="unknown group 'mirrow': did you mean 'mirror'"):
        settings_of("plankton", "pool-mean", group="mirrow")
    with pytest.raises(LabError, match="has no group"):
        settings_of("plankton", "baseline", group="D4")
    with pytest.raises(ConfigError, match="no dense layer to roll"):
        settings_of("buildings", "roll-dense-half")
    with pytest.raises(ConfigError, match="multiples"):
        edited(replace(TINY, stages=((6,),)), "roll-all-quarter")


OPTIONS = {name: kind for options in HEADINGS.values() for name, (kind, _) in options.items()}


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in STAGES])
def test_every_option_of_the_command_line_reaches_the_setting_of_its_name(name: str) -> None:
    some = {int: 7, float: 1.25, str: "D4", bool: True, tuple: (0.5,)}
    kinds = get_args(OPTIONS[name]) or (OPTIONS[name],)  # a choice, perhaps none, or one type
    value = next((some[kind] for kind in kinds if kind in some), some[tuple] if name == "drops" else kinds[-1])
    row = "residual-c4" if name in ("stem_stride", "invariants", "roll_from") else "pool-mean"
    settings = settings_of("synthetic", row, **Options(**{name: value}).given())
    found = {**vars(settings["net"]), **settings["augment"], **settings}
    assert found[name] == value


def test_what_is_not_given_is_left_to_the_experiment() -> None:
    assert Options().given() == {}
    assert Options(invert=False, epochs=0).given() == {"invert": False, "epochs": 0}


def test_a_loader_gets_the_settings_of_its_run() -> None:
    values = {"longest": 20, "floats": True, "skip_bad": True, "max_pixels": 99}
    config = checked({**settings_of("folder", "baseline", side=15, data="somewhere"), **values})
    found = loading.loader_settings(config)
    assert found == Settings(**values, folder="somewhere", side=15, channels=3)
    own = loading.loader_settings(config.model_copy(update={"loader": "images", "validation": 0.25}))
    assert (own.rules, own.validation) == (2, 0.25)


def test_options_of_ones_own_images_are_refused_elsewhere() -> None:
    for option in ({"labels": "a.csv"}, {"columns": ("a",)}, {"task": "numbers"}, {"groups_by": "a"}):
        config = checked(settings_of("synthetic", "baseline", **option))
        with pytest.raises(LabError, match=rf"--{next(iter(option)).replace('_', '-')} is for"):
            loading.load(config)
    with pytest.raises(LabError, match="--test-part is for"):
        loading.load(checked(settings_of("synthetic", "baseline", test_part=0.2)))


def test_the_key_of_a_cache_knows_what_decides_its_arrays() -> None:
    settings = Settings(folder="here", side=15, channels=1)
    assert settings.cache_key() == {"side": 15, "channels": 1, "longest": None, "invert": False}  # as it always was
    for change in ({"side": 16}, {"channels": 3}, {"longest": 9}, {"invert": True}, {"floats": True}):
        assert settings.model_copy(update=change).cache_key() != settings.cache_key()
    for change in ({"folder": "there"}, {"skip_bad": True}, {"max_pixels": 9}):
        assert settings.model_copy(update=change).cache_key() == settings.cache_key()


def test_files_call_the_degrees_of_a_warp_rotate() -> None:
    config = checked(settings_of("synthetic", "baseline", turn=90.0))
    written = json.loads(config.model_dump_json())
    assert written["augment"]["rotate"] == config.identity()["augment"]["rotate"] == 90.0
    assert "turn" not in written["augment"]
    written["augment"]["rotate"] = 45.0
    assert read(json.dumps(written)).augment.turn == 45.0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_makes_configs_for_its_rows(name: str) -> None:
    for row in EXPERIMENTS[name].rows:
        config = checked(settings_of(name, row))
        assert config.net == edited(EXPERIMENTS[name].baseline, row)
    divided = checked(settings_of("plankton", "pool-mean"))
    assert (divided.batch, divided.batch_images) == (128, 32)
    assert checked(settings_of("plankton", "pool-mean", group="d4")).batch_images == 16
    assert checked(settings_of("plankton", "baseline")).batch_images == 128
    with pytest.raises(LabError, match="lr"):
        checked(settings_of("plankton", "baseline", lr=-1.0))
    with pytest.raises(LabError, match="drops"):
        checked(settings_of("plankton", "baseline", drops=(1.5,)))


NEWER = (
    "optimizer",
    "momentum",
    "schedule",
    "warmup",
    "ema",
    "label_smoothing",
    "balanced",
    "accumulate",
    "validation",
    "keep",
)


@pytest.mark.parametrize("setting", ["floats", "tiles", "clip", "score_turns", "factory", *NEWER])
def test_a_setting_that_older_files_lack_has_its_default(setting: str) -> None:
    config = tiny()
    written = json.loads(config.model_dump_json())
    del written[setting]
    del written["augment"]["colour"], written["augment"]["border"], written["augment"]["interpolation"]
    del written["net"]["residual"], written["net"]["norm"], written["net"]["stem_stride"]
    assert read(json.dumps(written)) == config


def test_a_folder_of_ones_own_is_trained_as_test_images_look_and_in_the_faster_way() -> None:
    for row, rotate in (("baseline", "maps"), ("pool-mean", "maps"), ("roll-all-quarter", "filters")):
        config = config_for("folder", row)
        assert (config.augment.border, config.augment.interpolation) == ("reflection", "bicubic")
        assert (config.rotate, config.net.norm) == (rotate, True)
    assert config_for("folder", "roll-all-quarter", rotate="maps").rotate == "maps"
    assert config_for("folder", "residual-c4").net.stem_stride == 2


OTHERS = [
    name
    for name, found in EXPERIMENTS.items()
    if not name.startswith(("cells", "folder", "fit", "recipe")) and found.baseline.axes == 2
]


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_experiments_are_trained_as_ever(name: str) -> None:
    config = config_for(name, "roll-all-quarter")
    assert (config.optimizer, config.schedule, config.warmup, config.keep) == ("adam", "drops", 0.0, "last")
    assert (config.ema, config.label_smoothing, config.validation) == (0.0, 0.0, 0.0)
    assert (config.balanced, config.accumulate) == (False, 1)
    assert (config.net.norm, config.rotate, config.augment.interpolation) == (False, "maps", "bilinear")


@pytest.mark.parametrize("change", [{"stages": ((8,), (0,))}, {"hidden": (-1,)}, {"kernel": 0}])
def test_layers_without_filters_are_refused(change: dict[str, Any]) -> None:
    assert "give widths of 1 or more" in str(replace(PLANKTON, **change).fault())
    assert PLANKTON.fault() is None
