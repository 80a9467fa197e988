"""A taskset of verifiers: additions of one. It runs in the environment of verifiers."""

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 5


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> list[SumTask]:
        return [
            SumTask(SumData(idx=n, prompt=f"What is {n}+1?", answer=str(n + 1)), self.config.task)
            for n in range(self.config.num_tasks)
        ]
