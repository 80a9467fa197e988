"""Records of a run: metrics, warnings and validation samples go to the trackers, rollouts to their stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from agentrl.reporting.health.monitor import Health
from agentrl.reporting.samples import TextOf, segments
from agentrl.run_folder.reproducibility import ReproducibilityReport
from agentrl.store import TrajectoryStore
from agentrl.telemetry.base import Generation, GenerationTracker, Tracker, WarningTracker
from agentrl.trainer.protocols import Metrics
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout
from agentrl.types.sample import Sample


class Records:
    """Logs to the trackers of a run, and stores its rollouts.

    Args:
        num_generations: maximum number of rollouts that each validation logs as text; they come from the first tasks.
        text_of: converts tokens to text, including special tokens.
        train_store: stores training rollouts; None if the run trains on rollouts that are already stored.
        val_store: stores validation rollouts.
        excluded_store: stores groups that no step trained on; None if they are not saved.
        began: called when the run starts, after the saved state was restored, so that a failed resume leaves the run
            folder unchanged.
        reproducibility: checks after each step and validation whether the run is still reproducible.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        health: Health,
        num_generations: int,
        text_of: TextOf,
        train_store: TrajectoryStore | None = None,
        val_store: TrajectoryStore | None = None,
        began: Callable[[], None] = lambda: None,
        reproducibility: ReproducibilityReport | None = None,
        excluded_store: TrajectoryStore | None = None,
    ) -> None:
        self._trackers = trackers
        self._health = health
        self._num_generations = num_generations
        self._text_of = text_of
        self._train_store = train_store
        self._val_store = val_store
        self._excluded_store = excluded_store
        self._began = began
        self._reproducibility = reproducibility

    def start_after(self, step: int) -> None:
        """Start the run after `step` (-1 for a new run). Stored rollouts of later steps are deleted."""
        self._began()
        if self._reproducibility:
            self._reproducibility.begin(step)
        for store in filter(None, (self._train_store, self._val_store, self._excluded_store)):
            store.truncate(step)

    def store_rollouts(
        self,
        step: int,
        groups: Sequence[Group],
        samples: Sequence[Sample],
        excluded: Mapping[str, Excluded] = {},
        dropped: Sequence[Group] = (),
    ) -> None:
        """Store the rollouts of a training step, with the advantages of their samples.

        Args:
            excluded: rollout id (`uid/number`) -> the reason why the rollout was not trained on.
            dropped: groups that no step trained on.
        """
        if self._train_store:
            self._train_store.write(step, groups, samples, excluded)
        if self._excluded_store and dropped:
            self._excluded_store.write(step, dropped, excluded=excluded)
        if self._reproducibility:
            self._reproducibility.watch(step, "train", groups)

    def log(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of a training step, or of the validation before the first step (0).

        The health warnings of a training step are logged, too.
        """
        for tracker in self._trackers:
            tracker.log(step, metrics)
        for warning in self._health.check(metrics) if step else ():
            for tracker in self._trackers:
                if isinstance(tracker, WarningTracker):
                    tracker.log_warning(step, warning)

    def log_validation(self, step: int, groups: Sequence[Group]) -> None:
        """Store the rollouts of a validation, and log the first `num_generations` rollouts as text."""
        if self._val_store:
            self._val_store.write(step, groups)
        if self._reproducibility:
            self._reproducibility.watch(step, "val", groups)
        generations = list(islice(self._generations(groups), self._num_generations))
        for tracker in self._trackers:
            if generations and isinstance(tracker, GenerationTracker):
                tracker.log_generations(step, generations)

    def validated(self, step: int) -> list[Group]:
        """Return the stored validation rollouts of `step`; empty if there are none."""
        store = self._val_store
        return store.groups(step) if store and step in store.steps else []

    def _generations(self, groups: Sequence[Group]) -> Iterator[Generation]:
        for group in groups:
            for rollout in group.rollouts:
                yield self._generation(str(group.task.ground_truth), rollout)

    def _generation(self, ground_truth: str, rollout: Rollout) -> Generation:
        shown = list(segments(rollout, self._text_of))
        before, after = (shown[0]["text"], shown[1:]) if shown else ("", [])
        output = "".join(segment["text"] for segment in after)
        return Generation(before, output, ground_truth, rollout.reward, rollout.stop.value)
