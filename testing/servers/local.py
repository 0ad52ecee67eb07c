"""What all throw-away servers have in common: their members, ports, starts and faults."""

from __future__ import annotations

import http.client
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final, Self, TypeAlias

from ...ops.errors import InvalidSettingError
from .processes import HOST, ServerProcess, ServerStartError, free_ports
from .proxies import ANY_MEMBER, CLIENT, Proxies, Route, process_group_at

__all__ = ["MEMBERS", "LocalServer", "ServerMember", "check_members"]

#: The sizes of clusters. An even number tolerates no more failures than the odd one below it.
MEMBERS: Final = (1, 3, 5, 7)

# Seconds from one question to the next, while a start or an election is awaited.
_PAUSE: Final = 0.02
# Seconds that a server has to end by itself.
_PATIENCE: Final = 10.0


# The member that has failed, or none if the proxies have, and how.
_Failure: TypeAlias = "tuple[ServerMember | None, str]"


@dataclass(slots=True)
class ServerMember:
    """One member of a cluster.

    Attributes:
        number: its place in the cluster, from 0.
        process: its process.
        ports: the ports at which it listens, first the one for clients, then those for members.
    """

    number: int
    process: ServerProcess
    ports: tuple[int, ...] = ()

    @property
    def directory(self) -> Path:
        """The directory of its files, in which it runs."""
        return self.process.directory


class LocalServer(ABC):
    """A server, or a cluster of several members, which can be started, killed and paused.

    Members are numbered from 0. Without a number, a method is about all members. It is not
    thread-safe: only one thread at a time may control a server.

    Args:
        directory: the directory for all files of this server; created if missing. A single server
            uses the data that an earlier one has left there. A cluster needs its own directory.
        members: the number of members: 1, 3, 5 or 7.
        proxied: whether connections pass through proxies, so that ``isolate`` works. By default,
            those of a cluster do. They take CPU time of this process, so measurements leave them
            out.
        start_timeout: the most seconds that a start may take.

    Attributes:
        directory: the given directory as an absolute path.
        members: the members.

    Raises:
        InvalidSettingError: the number of members is not possible.
    """

    name: ClassVar[str]  # the name of the kind of store, and the scheme of its URLs
    peer_ports: ClassVar[int]  # the number of ports for connections between members
    # Whether all members must have the same address for a member.
    one_address: ClassVar[bool]

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        members: int = 1,
        proxied: bool | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        check_members(members)
        self.directory = Path(directory).absolute()
        self.members: Sequence[ServerMember] = [
            ServerMember(
                number,
                ServerProcess(
                    self.name,
                    self.directory / f"member-{number}" if members > 1 else self.directory,
                ),
            )
            for number in range(members)
        ]
        self._start_timeout = start_timeout
        self._proxied = members > 1 if proxied is None else proxied
        self._proxies: Proxies | None = None
        # The ports of the proxies, by source and target.
        self._fronts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._cut: set[int] = set()

    @classmethod
    def for_bench(cls, directory: str | os.PathLike[str], *, members: int = 1) -> Self:
        """Return a server for measurements, which put more into it than tests do."""
        return cls(directory, members=members, proxied=False)

    @property
    def clustered(self) -> bool:
        """Whether there are several members."""
        return len(self.members) > 1

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each member, for clients.

        They are known after the first start, and restarts keep them.
        """
        if not self.members[0].ports:
            raise RuntimeError(f"{self.name} was never started")
        return [f"{HOST}:{self._reach(CLIENT, member)[0]}" for member in self.members]

    @property
    def address(self) -> str:
        """``host:port`` of the first member, for clients."""
        return self.addresses[0]

    @property
    def url(self) -> str:
        """The URL of a store on this server, with all members, and with no prefix or chroot."""
        return f"{self.name}://{','.join(self.addresses)}"

    @property
    def log(self) -> Path:
        """The file with the output of the first member, from all its starts."""
        return self.members[0].process.log

    @property
    def pid(self) -> int:
        """The process id of the first member, which must be running."""
        return self.members[0].process.pid

    @property
    def running(self) -> bool:
        """Whether the process of a member exists. A paused process does."""
        return any(member.process.running for member in self.members)

    def start(self, member: int | None = None) -> None:
        """Start a member, or all that do not run, and return when they answer.

        The first start finds free ports; later ones use the same. A member of a cluster answers
        when it belongs to a majority.

        Raises:
            ServerMissingError: a part of the server is not on this machine.
            ServerStartError: a member did not answer within ``start_timeout``, or ended.
        """
        first = not self.members[0].ports
        if first and member is not None:
            raise RuntimeError(f"{self.name} was never started: start all members first")
        chosen = [one for one in self._chosen(member) if not one.process.running]
        if not chosen:
            pid = self._chosen(member)[0].process.pid
            raise RuntimeError(f"{self.name} is running already (pid {pid})")
        if first and self.clustered and self.directory.exists() and any(self.directory.iterdir()):
            raise ServerStartError(f"a new cluster needs an empty directory: {self.directory}")
        deadline = time.monotonic() + self._start_timeout
        while True:
            if first:
                self._assign_ports()
            sizes = [_size(one.process.log) for one in chosen]
            try:
                failed = self._launch(chosen, deadline)
            except BaseException:
                self._give_up(chosen, first)
                raise
            if failed is None:
                return
            self._give_up(chosen, first)
            at, reason = failed
            if at is None:
                said, where = reason, "the proxies"
            else:
                said = at.process.logged(sizes[chosen.index(at)])
                where = str(at.process.log)
            # Another process has taken a port. A first start tries new ports. A restart must keep
            # the address, so it waits until the port is free.
            if "address already in use" in said.lower() and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            tail = "\n".join(said.splitlines()[-20:]) or "(nothing)"
            raise ServerStartError(f"{self.name} {reason}; the end of {where}:\n{tail}")

    def stop(self, member: int | None = None) -> None:
        """End members with SIGTERM, and kill them after 10 s. Do nothing if they do not run."""
        chosen = self._chosen(member)
        for one in chosen:
            one.process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for one in chosen:
            one.process.await_end(max(0.0, deadline - time.monotonic()))
        self._ended(chosen)
        if not self.running and self._proxies is not None:
            self._proxies.close()
            self._proxies = None
            self._cut.clear()

    def kill(self, member: int | None = None) -> None:
        """Kill members, as ``kill -9`` does, and return when they have ended."""
        chosen = self._chosen(member)
        for one in chosen:
            one.process.kill()
        self._ended(chosen)

    def restart(self, member: int | None = None) -> None:
        """Stop members that run, and start them again on the same ports and data."""
        self.stop(member)
        self.start(member)

    def pause(self, member: int | None = None) -> None:
        """Freeze members (SIGSTOP), and return when they have stopped.

        The system still accepts connections and buffers their data, but nothing answers.
        """
        for one in self._chosen(member):
            one.process.pause()

    def resume(self, member: int | None = None) -> None:
        """Let paused members continue (SIGCONT)."""
        for one in self._chosen(member):
            one.process.resume()

    def isolate(self, member: int, *, clients: bool = False) -> None:
        """Cut a member off from the others, and from clients too if ``clients`` is true.

        No connection ends: what is sent is held until ``rejoin``, and arrives then. Clients are cut
        off only if they use the addresses in ``url``.
        """
        if self._proxies is None:
            raise RuntimeError(f"{self.name} has no proxies, or does not run")
        self._proxies.cut(member, clients=clients)
        self._cut.add(member)

    def rejoin(self, member: int) -> None:
        """Connect an isolated member again."""
        if self._proxies is not None:
            self._proxies.restore(member)
        self._cut.discard(member)

    def leader(self, timeout: float = 30.0) -> int:
        """Return the number of the leader, and wait while there is none.

        Only members that run, and are neither paused nor isolated, can be the leader.

        Raises:
            RuntimeError: no member leads within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            leading = [
                one.number
                for one in self.members
                if one.process.running
                and not one.process.paused
                and one.number not in self._cut
                and _true(partial(self._leads, one))
            ]
            if len(leading) == 1:
                return leading[0]
            time.sleep(_PAUSE)
        raise RuntimeError(f"no member of {self.name} leads within {timeout:g} s")

    def kill_leader(self) -> int:
        """Kill the leader, and return its number, with which ``start`` starts it again."""
        leader = self.leader()
        self.kill(leader)
        return leader

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.clustered:
            # Without its followers, an etcd that is asked to end waits for seven seconds.
            self.kill()
        self.stop()

    @abstractmethod
    def _command(self, member: ServerMember) -> list[str]:
        """Write a member's configuration, and return its command, to run in its directory."""

    @abstractmethod
    def _answers(self, member: ServerMember) -> bool:
        """Say whether a member serves requests. An ``OSError`` counts as no."""

    @abstractmethod
    def _leads(self, member: ServerMember) -> bool:
        """Say whether a member takes itself for the leader. An ``OSError`` counts as no."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]: ...

    def _chosen(self, member: int | None) -> Sequence[ServerMember]:
        return self.members if member is None else [self.members[member]]

    def _reach(self, source: int, member: ServerMember) -> tuple[int, ...]:
        """Return the ports at which a client, or another member, reaches a member."""
        if not self._proxied or source == member.number:
            return self._ports_for(source, member.number)
        return self._fronts[source, member.number]

    def _assign_ports(self) -> None:
        numbers = range(len(self.members))
        each = 1 + self.peer_ports
        sizes = {
            (source, target): 1 if source == CLIENT else self.peer_ports
            for target in numbers
            for source in (CLIENT, *([ANY_MEMBER] if self.one_address else numbers))
            if self._proxied and source != target
        }
        ports = iter(free_ports(each * len(numbers) + sum(sizes.values())))
        for member in self.members:
            member.ports = tuple(islice(ports, each))
        self._fronts = {pair: tuple(islice(ports, size)) for pair, size in sizes.items()}

    def _launch(self, chosen: Sequence[ServerMember], deadline: float) -> _Failure | None:
        """Launch members, and return ``None`` when they answer, or why they do not."""
        if self._proxied and self._proxies is None:
            self._proxies = Proxies(self._routes(), self._member_at)
        for member in chosen:
            if self._proxies is not None:
                try:
                    self._proxies.listen(member.number)
                except OSError as error:
                    return None, f"has no proxies: {error}"
            member.directory.mkdir(parents=True, exist_ok=True)
            member.process.launch(self._command(member), self._environment())
        return self._await_answers(list(chosen), deadline)

    def _await_answers(self, waiting: list[ServerMember], deadline: float) -> _Failure | None:
        while True:
            for member in waiting[:]:
                if not member.process.running:
                    return member, f"ended at once with code {member.process.code}"
                if _true(partial(self._answers, member)):
                    waiting.remove(member)
            if not waiting:
                return None
            if time.monotonic() >= deadline:
                address = f"{HOST}:{waiting[0].ports[0]}"
                return waiting[0], f"did not answer at {address} within {self._start_timeout:g} s"
            time.sleep(_PAUSE)

    def _routes(self) -> list[Route]:
        return [
            Route(front, port, source, target)
            for (source, target), fronts in self._fronts.items()
            for front, port in zip(fronts, self._ports_for(source, target), strict=True)
        ]

    def _ports_for(self, source: int, target: int) -> tuple[int, ...]:
        ports = self.members[target].ports
        return ports[:1] if source == CLIENT else ports[1:]

    def _member_at(self, port: int, remote: int) -> int | None:
        groups = {
            member.process.pid: member.number for member in self.members if member.process.running
        }
        group = process_group_at(port, remote, groups)
        return None if group is None else groups.get(group)

    def _give_up(self, chosen: Sequence[ServerMember], first: bool) -> None:
        for member in chosen:
            member.process.kill()
        self._ended(chosen)
        if first:
            if self._proxies is not None:
                self._proxies.close()
                self._proxies = None
            for member in self.members:
                member.ports = ()
                if self.clustered:  # The data knows the ports.
                    shutil.rmtree(member.directory / "data", ignore_errors=True)

    def _ended(self, members: Sequence[ServerMember]) -> None:
        if self._proxies is not None:
            for member in members:
                self._proxies.refuse(member.number)


def check_members(members: int) -> None:
    """Raise unless a cluster may have this number of members.

    Raises:
        InvalidSettingError: it may not.
    """
    if members not in MEMBERS:
        raise InvalidSettingError(
            f"the number of members must be {', '.join(map(str, MEMBERS[:-1]))} or {MEMBERS[-1]}, "
            f"not {members}"
        )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _true(question: partial[bool]) -> bool:
    try:
        return question()
    except (OSError, http.client.HTTPException):
        return False  # It does not listen yet, or is not ready.
