"""From a folder to a trained network: look, plan, choose the symmetry, train, check, score."""

import json
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from quarterturn_lab.data import splits, voxels
from quarterturn_lab.data.dataset import Data, Scenes, checked_settings, subset
from quarterturn_lab.data.look import Found, look
from quarterturn_lab.data.watch import watching
from quarterturn_lab.errors import ConfigError, DataError
from quarterturn_lab.files import damaged, read_json, write_atomically
from quarterturn_lab.fit import plan, symmetry, timing, volume_symmetry
from quarterturn_lab.fit.pace import FORWARD, Pace, images_to_score
from quarterturn_lab.fit.request import LENGTH, MINUTES, Request, write_file
from quarterturn_lab.fit.search import FOLDER, SHARE, Search, searched, space
from quarterturn_lab.fit.search import options_of as search_options
from quarterturn_lab.progress import Bars
from quarterturn_lab.runs.environment import pick_device
from quarterturn_lab.runs.loading import load
from quarterturn_lab.runs.model_card import DENSE
from quarterturn_lab.runs.run_directory import read_config, summary
from quarterturn_lab.runs.trust import check_settings
from quarterturn_lab.settings.config import Config, ImageSettings, read
from quarterturn_lab.settings.networks import group_for
from quarterturn_lab.training import training_run

Record = dict[str, Any]
PLAN = f"{FOLDER}/plan.json"  # what a search begins with, until there is the record
RECORD = "fit.json"  # in the run directory: what was asked, found and chosen
WAY_OUT = "remove the run directory, and run the same command again"
# A probe asks about the images, so that it is the lab's own network whatever the user's is, trained to the end.
PROBE = (*LENGTH, "backbone", "how", "weights", "rotate", "keep", "patience", "turn", "flip")
ORDINARY = (*LENGTH, "how", "invariants")  # options that an ordinary network has no use for
PASSES = 3  # over the images of a trial at least; if the time is too short for so many, it has fewer images


@dataclass(frozen=True)
class Fitted:
    """A finished fit: its run, that of the ordinary network beside it, and what was chosen."""

    directory: Path
    ordinary: Path | None
    record: Record


class Fit:
    """One fit: the request, the clock, and what is known so far."""

    def __init__(self, request: Request, root: Path, bars: Bars, search: Search | None = None) -> None:
        self.search = search
        self.request, self.root, self.bars, self.started = request, root, bars, time.monotonic()
        self.directory = request.directory(root)
        self.costs: dict[str, float] = {}
        self.threads = plan.cores()
        self.points: int | None = None  # how often validation images are scored on the way, where that is not the usual

    def left(self) -> float | None:
        """Seconds that are left for the network; None if epochs are given."""
        seconds = self.request.seconds
        return None if seconds is None else seconds - (time.monotonic() - self.started)

    def network(self, chosen: str) -> str:
        """The group of the network for images with this symmetry: none if the user wants a backbone as it is."""
        if self.request.options.get("how") == "plain":
            return "none"
        return plan.LEARNS.get(chosen, chosen) if self.request.symmetry == "auto" else chosen

    # --- steps --------------------------------------------------------------------------------------------------------

    def run(self) -> Fitted:
        """Do all of it, or what is not done yet."""
        if (self.directory / RECORD).exists():
            return self.again()
        if self.request.compare:
            self.bars.say("--compare: an ordinary network will be trained too, which takes as long again")
        found = self.look()
        plans = self.directory / PLAN
        if self.search and plans.exists():  # a search has begun
            record, size, chosen, config = read_plan(plans)
            self.threads, data = config.threads, self.load(config)
        else:
            size = self.choose_size(found)
            chosen, choice = self.choose_symmetry(found, size)
            config, data = self.config(found, size, chosen)
            record = {"request": self.request.to_json(), "found": found.lines(), "size": asdict(size)}
            record |= {"choice": choice, "symmetry": chosen, "seconds": self.left()}
        if self.search:
            plans.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(plans, json.dumps({**record, "config": config.model_dump_json()}))
            config, record["search"] = self.searched(self.search, found, size, chosen, config)
        self.begin(self.directory, config, record)
        forward = FORWARD * size.cover / size.tiles
        self.train(config, self.directory, data, record["seconds"], forward=forward)
        return Fitted(self.directory, self.ordinary(found, size, chosen, config), record)

    def searched(
        self, search: Search, found: Found, size: plan.Size, chosen: str, base: Config
    ) -> tuple[Config, dict[str, Any]]:
        """The settings that a search finds best, and their parameters."""
        planned, warps = base.net.group or "none", plan.warps_of(chosen, found.axes)

        def make(params: dict[str, Any], epochs: int = base.epochs) -> Config:
            group = params.get("group", planned)
            changed = replace(self.request, options={**self.request.options, **search_options(params, group)})
            return self.made(found, size, group, epochs, warps, request=changed)

        def trial(params: dict[str, Any]) -> Config:
            brief = make(params, max(1, round(base.epochs * SHARE)))
            return brief.model_copy(update={"eval_points": 1, "score_turns": False, "eval_train": 100})

        self.bars.say(f"search: trials of {max(1, round(base.epochs * SHARE))} epochs, judged on validation images")
        spaces = space(base, chosen, self.request.options, self.request.symmetry == "auto")
        best = searched(self.directory, search, base, found.task, spaces, trial, self.bars)
        return make(best), best

    def look(self) -> Found:
        """Say what the folder holds."""
        options = {name: value for name, value in self.request.options.items() if name in ImageSettings.model_fields}
        validation = self.request.options.get("validation", 0.0)  # the folder's own part, or the usual one
        settings = checked_settings(
            folder=str(self.request.folder), side=64, channels=3, rules=2, validation=validation, **options
        )
        with watching(self.bars.files):
            found = look(settings)
        for line in found.lines():
            self.bars.say(line)
        few = [part for part in ("train", "valid", "test") if not found.parts.get(part)]
        if few or (found.images < plan.FEWEST and found.task not in DENSE):  # a scene with a mask is many tiles
            raise DataError(
                f"{found.images} images in {found.folder} are too few to train, validate and test: give at least "
                f"{plan.FEWEST}, and better hundreds"
            )
        if self.request.symmetry not in ("auto", "none"):
            if found.axes == 3:
                voxels.check(self.request.symmetry, found.spacings)
            else:
                group_for(self.request.symmetry)
        if found.axes == 3 and "backbone" in self.request.options:
            raise ConfigError("--backbone is for images, and these are volumes: convert the network in Python instead")
        train = min(found.parts["train"], self.request.options.get("train_size") or found.images)
        return replace(found, parts={**found.parts, "train": train})

    def choose_size(self, found: Found) -> plan.Size:
        """Choose the size of the images, and the number of threads, by the time of a step."""
        backbone, side = "backbone" in self.request.options, self.request.options.get("side")
        smallest = plan.sizes(found, backbone, side)[0]
        widest = "D4" if found.axes == 2 else voxels.allowed(found.spacings).name
        wanted = self.request.symmetry if self.request.symmetry != "auto" else widest
        timed = self.made(found, smallest, self.network(wanted), 1, plan.warps_of(wanted, found.axes))
        costs = {threads: self.cost(found, timed, threads) for threads in {1, timed.threads}}
        self.threads = plan.threads_for(costs)
        per_position = costs[self.threads] / smallest.positions

        def epoch(size: plan.Size) -> float:
            return found.parts["train"] * size.tiles * per_position * size.positions

        seconds, share = self.left(), 1 - plan.TRIAL if self.request.symmetry == "auto" else 1.0
        size = plan.size_for(found, None if seconds is None else seconds * share, epoch, backbone, side)
        if seconds is not None:
            cost, spent = per_position * size.positions, time.monotonic() - self.started
            fewest = 1 if timed.keep == "best" else 0
            by_points = {
                points: cost * self.scoring(timed.model_copy(update={"eval_points": points}), found.parts, size)
                for points in (timed.eval_points, 2, fewest)
            }
            fitting = [points for points, took in by_points.items() if took <= plan.SCORING * seconds * share]
            self.points = fitting[0] if fitting else fewest
            plan.check_time(seconds, share, epoch(size), by_points[self.points], found.parts["train"], spent)
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        self.bars.say(f"plan: {size.why}; batches of {size.batch}; {threads}")
        return size

    def choose_symmetry(self, found: Found, size: plan.Size) -> tuple[str, dict[str, Any] | None]:
        """The symmetry: the given one, or the one that short training speaks for."""
        if self.request.symmetry != "auto":
            return self.request.symmetry, None
        if found.axes == 3:
            return self.choose_volume_symmetry(found, size)
        configs = [self.made(found, size, name, 1, plan.warps_of(name), PROBE) for name in ("none", "C4")]
        data = self.load(configs[0])
        if not len(data.valid):
            raise DataError("auto needs validation images: give --symmetry C4 or D4, or --validation 0.15")
        seconds = self.left()
        probes = []
        for name, config in zip(("none", "C4"), configs, strict=True):
            part, epochs, pace = data, max(1, round((self.request.epochs or 0) * plan.TRIAL / 2)), None
            if seconds is not None:
                cost = self.cost(found, config)
                scoring = FORWARD * len(symmetry.scored(data)) * 4 * size.cover
                images = (seconds * plan.TRIAL / 2 / cost - scoring) / size.tiles
                part = subset(data, max(2 * len(data.classes), 8, int(images / PASSES)), self.request.seed)
                epochs = max(1, int(images / len(part.train)))
                pace = Pace(images * size.tiles * cost, part)
            brief = config.model_copy(update={"epochs": epochs, "eval_points": 0})
            what = "trial, ordinary network" if name == "none" else "trial, equivariant network"
            net, self.costs[_kind(brief)] = symmetry.trained(brief, part, self.show(what, brief), pace)
            probes.append((brief, net))
        choice = symmetry.decide(symmetry.evidence(probes[0], probes[1], data))
        sure = "" if choice.sure else " (not sure)"
        self.bars.say(f"symmetry: {choice.symmetry}{sure}, because {choice.why}")
        if (group := self.network(choice.symmetry)) not in (choice.symmetry, "none"):
            self.bars.say(
                f"network: {group}, trained on mirrored images too, which learns more in minutes; --symmetry "
                f"{choice.symmetry} makes mirrored images exact as well"
            )
        return choice.symmetry, asdict(choice)

    def choose_volume_symmetry(self, found: Found, size: plan.Size) -> tuple[str, dict[str, Any] | None]:
        """The symmetry that the size of voxels allows and one short training speaks for."""
        largest = voxels.allowed(found.spacings)
        self.bars.say(f"voxels allow {largest.name}: {largest.order} orientations")
        config = self.made(found, size, "none", 1, plan.warps_of("none", 3), PROBE)
        data = self.load(config)
        assert isinstance(data, Scenes)
        if not len(data.valid):
            raise DataError("auto needs validation volumes: give --symmetry mirror-1, say, or --validation 0.15")
        seconds, epochs = self.left(), max(1, round((self.request.epochs or 0) * plan.TRIAL))
        part: Data = data
        if seconds is not None:
            cost = self.cost(found, config)
            scoring = FORWARD * volume_symmetry.MOST * 7 * size.cover
            patches = max(8.0, seconds * plan.TRIAL / cost - scoring)
            part = subset(data, max(8, int(patches / size.tiles / PASSES)), self.request.seed)
            epochs = max(1, int(patches / size.tiles / len(part.train)))
        brief = config.model_copy(update={"epochs": epochs, "eval_points": 0})
        net, _ = symmetry.trained(brief, part, self.show("trial, ordinary network", brief))
        choice = volume_symmetry.choose((brief, net), data, largest)
        sure = "" if choice.sure else " (not sure)"
        self.bars.say(f"symmetry: {choice.symmetry}{sure}, because {choice.why}")
        return choice.symmetry, asdict(choice)

    def config(self, found: Found, size: plan.Size, chosen: str) -> tuple[Config, Data]:
        """The settings of the run, with as many epochs as the time allows, and its data."""
        name, warps = self.network(chosen), plan.warps_of(chosen, found.axes)
        given = self.request.epochs or 1
        config = self.made(found, size, name, given, warps, ("epochs",) if self.request.epochs else LENGTH)
        data = self.load(config)
        took = ""
        if self.request.epochs is None:
            cost, tiles = self.cost(found, config), config.tiles if found.task in DENSE else 1
            seconds = self.left()
            assert seconds is not None
            epoch = len(data.train) * tiles * cost
            epochs = plan.epochs_for(seconds, epoch, self.scoring(config, found.parts, size) * cost)
            config, took = self.made(found, size, name, epochs, warps), f" of {epoch:.1f} seconds"
        self.bars.say(f"training: {plan.in_words(config)}, {config.epochs} epochs{took}")
        if copies := splits.copies(data):
            self.bars.say(
                f"note: {len(copies):,} of {len(data.test):,} test images are copies of training images, such as "
                f"{copies[0]}, so that the test is too easy: remove them, or keep them together with --groups-by"
            )
        return config, data

    def train(
        self,
        config: Config,
        directory: Path,
        data: Data,
        seconds: float | None,
        everything: bool = True,
        forward: float = FORWARD,
    ) -> None:
        """Train or resume the run, in these seconds: for all of it, or for its training alone.

        `forward` is the time of scoring an image, as a share of that of training on it in an epoch.
        """
        label = f"{config.net.group} network" if config.net.group else "ordinary network"

        def keep(changed: Config) -> None:
            plans = f"{changed.epochs} epochs instead of {changed.earlier_plans[-1][0]}"
            self.bars.say(f"{label}: {plans}, because the machine's speed has changed")
            self.write(directory, changed)

        pace = Pace(seconds, data, everything, keep, forward) if seconds is not None else None
        training_run.run(config, directory, self.show(label, config), self.bars.say, data, pace)

    def ordinary(self, found: Found, size: plan.Size, chosen: str, config: Config) -> Path | None:
        """The run of an ordinary network, with images turned and flipped as for the other, in as much training time."""
        directory = self.request.ordinary_directory(self.root)
        if not self.request.compare or config.net.group is None:
            return None
        seconds = summary(self.directory)["wall_seconds"]
        if (directory / RECORD).exists():
            plain = self.kept(directory)
        else:
            plain = self.made(found, size, "none", 1, plan.warps_of(chosen, found.axes), ORDINARY)
            self.costs.clear()  # both are timed now: the machine may have other work than at the start
            ratio = self.cost(found, config) / self.cost(found, plain)
            plain = plain.model_copy(update={"epochs": max(1, round(config.epochs * ratio))})
            self.begin(directory, plain, {"request": self.request.to_json(), "symmetry": "none"})
        self.bars.say(f"training to compare: {plan.in_words(plain)}, {plain.epochs} epochs, in as much time")
        self.train(plain, directory, self.load(plain), seconds, everything=False)
        return directory

    def again(self) -> Fitted:
        """A run that was started before: go on with it, or show it if it is finished."""
        record = read_record(self.directory / RECORD)
        before = record["request"]
        if before["folder"] != str(self.request.folder.resolve()):
            raise ConfigError(
                f"{self.directory} holds a run on another folder, {before['folder']}: give another --runs-dir"
            )
        config = self.kept(self.directory)
        if not (self.directory / "summary.json").exists():
            self.bars.say(f"resuming {self.directory}")
        elif (epochs := self.wanted(config, before["minutes"])) > config.epochs:
            self.bars.say(f"{self.directory} is finished; training it for longer, to {epochs} epochs")
            config = training_run.lengthen(self.directory, epochs)
            record |= {"request": self.request.to_json(), "seconds": self.longer(record, before["minutes"])}
            write_atomically(self.directory / RECORD, json.dumps(record, indent=1))
            self.write(self.directory, config)
        else:
            self.bars.say(f"{self.directory} is finished already: {config.epochs} epochs")
        self.train(config, self.directory, self.load(config), record.get("seconds"))
        if not self.request.compare:
            return Fitted(self.directory, None, record)
        self.threads, (size, chosen) = config.threads, _planned(record, self.directory / RECORD)
        return Fitted(self.directory, self.ordinary(self.look(), size, chosen, config), record)

    def wanted(self, config: Config, minutes: float | None) -> int:
        """The number of epochs that the request wants of a finished run."""
        if self.request.epochs is not None:
            return self.request.epochs
        more = 60 * ((self.request.minutes or MINUTES) - (minutes or MINUTES))
        epoch = summary(self.directory)["wall_seconds"] / config.epochs
        return config.epochs + max(0, int(more * (1 - plan.RESERVE) / epoch))

    def longer(self, record: Record, minutes: float | None) -> float | None:
        """The seconds of a run that is trained for longer; None if its epochs are given."""
        if self.request.seconds is None or record.get("seconds") is None:
            return None
        return record["seconds"] + self.request.seconds - 60 * (minutes or MINUTES)

    # --- helpers ------------------------------------------------------------------------------------------------------

    def made(
        self,
        found: Found,
        size: plan.Size,
        name: str,
        epochs: int,
        warps: dict[str, Any],
        without: tuple[str, ...] = LENGTH,
        request: Request | None = None,
    ) -> Config:
        """The settings of a run, with the options of the user but for some."""
        options = {key: value for key, value in (request or self.request).options.items() if key not in without}
        device = pick_device(options.get("device", "auto"))
        planned = {} if self.points is None else {"eval_points": self.points}
        options = {"threads": self.threads, "precision": plan.precision_on(device), **planned, **options}
        return plan.config_of(found, size, name, epochs, self.request.seed, options, warps)

    def cost(self, found: Found, config: Config, threads: int | None = None) -> float:
        """Seconds of training on an image, measured once for each network, size and number of threads."""
        config = config.model_copy(update={"threads": threads or config.threads})
        if _kind(config) not in self.costs:
            self.costs[_kind(config)] = timing.seconds_per_image(config, found.task, found.classes)
        return self.costs[_kind(config)]

    def scoring(self, config: Config, parts: dict[str, int], size: plan.Size) -> float:
        """How much scoring there is in a run, in images of training."""
        return images_to_score(config, parts, config.eval_points) * size.cover * FORWARD

    def kept(self, directory: Path) -> Config:
        """The settings of a run that was begun before, which name no code but what the request names."""
        config = read_config(directory)
        check_settings(dict(config), directory / "config.json", self.request.options)
        return config

    def load(self, config: Config) -> Data:
        with watching(self.bars.files):
            return load(config)

    def begin(self, directory: Path, config: Config, record: Record) -> None:
        """Write what was asked and found, before the first step."""
        directory.mkdir(parents=True, exist_ok=True)
        self.write(directory, config)
        write_atomically(directory / RECORD, json.dumps(record, indent=1))

    def write(self, directory: Path, config: Config) -> None:
        """Write the settings of a run, for itself and for one that repeats it."""
        write_atomically(directory / "config.json", config.model_dump_json(indent=1))
        write_file(directory / "run.toml", config, config.net.group or "none")

    def show(self, name: str, config: Config) -> training_run.Progress:
        return lambda step, total, loss: self.bars.update(name, step, total, loss, config.batch_images)


def _kind(config: Config) -> str:
    """What the time of a step depends on."""
    return config.model_dump_json(exclude={"epochs", "earlier_plans", "eval_points", "ema", "augment", "score_turns"})


def read_record(path: Path) -> Record:
    """What was asked, found and chosen, from the file of a run."""
    found = read_json(path, WAY_OUT)
    request = found.get("request")
    if not isinstance(request, dict) or {field.name for field in fields(Request)} - request.keys():
        raise damaged(path, "it has no request", WAY_OUT)
    return found


def read_plan(path: Path) -> tuple[Record, plan.Size, str, Config]:
    """The record of a fit whose search has begun, the size of its images, its symmetry and its planned settings."""
    found = read_record(path)
    size, chosen = _planned(found, path)
    try:
        return found, size, chosen, read(found.pop("config", ""))
    except ConfigError as error:
        raise damaged(path, error, WAY_OUT) from None


def _planned(record: Record, path: Path) -> tuple[plan.Size, str]:
    """The size of images and the symmetry that a record says."""
    try:
        return plan.Size(**record["size"]), str(record["symmetry"])
    except (LookupError, TypeError) as error:
        raise damaged(path, f"it does not say what was planned, {error}", WAY_OUT) from None


def latest(request: Request, root: Path) -> Request:
    """The request of the latest run on this folder, with this number of epochs or minutes if any are given."""
    below = request.directory(root).parents[1]
    found = sorted(below.glob(f"*/seed*/{RECORD}"), key=lambda path: path.stat().st_mtime)
    records = [read_record(path) for path in found]
    whole = [record for record in records if "choice" in record]
    if not whole:
        raise ConfigError(f"there is no run to resume in {below}: leave --resume out")
    before = whole[-1]["request"]
    options = {key: value for key, value in before["options"].items() if key != "epochs" or not request.minutes}
    options |= {"epochs": request.epochs} if request.epochs else {}
    minutes = request.minutes if request.minutes or request.epochs else before["minutes"]
    return Request(
        request.folder,
        before["symmetry"],
        minutes,
        before["compare"],
        before["seed"],
        before.get("search", False),
        options,
    )
