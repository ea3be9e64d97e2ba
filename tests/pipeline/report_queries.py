"""Tables of reports, each as one query of DuckDB over an archive's files: another engine, other queries.

A query gives all columns of its table, in any order of rows.
"""

from __future__ import annotations

import os
from typing import Any

import duckdb

from agentbus.pipeline.archives.delta_table import ArchiveTable
from agentbus.pipeline.archives.location import place

_EVENTS = (
    *("received", "processed", "failed", "retried", "reclaimed", "dead", "lost", "stale"),
    *("duplicates", "cancelled", "released", "refused"),
)
_OUTCOMES = ("done", "retried", "dead", "snoozed", "cancelled", "expired", "cut_off")
# The span is of days, so time is cut into hours, and work is counted in slots of five minutes.
_VIEWS = (
    """
    CREATE VIEW entries AS
    SELECT *, date_trunc('hour', time) AS hour FROM entry WHERE kind IN ('channel', 'queue')
    """,
    f"""
    CREATE VIEW work AS
    SELECT queue, nullif(fields['group'], '') AS "group", nullif(fields['worker'], '') AS worker,
      nullif(agent, '') AS agent, time, date_trunc('hour', time) AS hour,
      time_bucket(INTERVAL 5 minutes, time) AS slot,
      {", ".join(f"coalesce(try_cast(fields['{e}'] AS BIGINT), 0) AS {e}" for e in _EVENTS)},
      coalesce(try_cast(fields['busy_ms'] AS DOUBLE), 0) AS busy_ms,
      coalesce(try_cast(fields['waited_ms'] AS DOUBLE), 0) AS waited_ms,
      coalesce(cast(cast(fields['ran'] AS JSON) AS BIGINT[]), []) AS ran,
      coalesce(cast(cast(fields['waited'] AS JSON) AS BIGINT[]), []) AS waited
    FROM entry WHERE kind = 'metrics' AND queue <> ''
    """,
    """
    CREATE VIEW came AS
    SELECT queue, time, 1 AS number FROM entry WHERE kind = 'queue'
    UNION ALL
    SELECT replace(replace(split_part(stream, ':', 2), '%3A', ':'), '%25', '%'), time, lost
    FROM entry WHERE kind = 'gap' AND stream LIKE 'q:%'
    """,
    # Each worker's counts of tasks by bucket, of which number n ends at 2^n ms.
    """
    CREATE VIEW bucket AS
    SELECT queue, "group", worker, 'running' AS what, unnest(ran) AS number,
      generate_subscripts(ran, 1) - 1 AS n FROM work
    UNION ALL
    SELECT queue, "group", worker, 'waiting', unnest(waited), generate_subscripts(waited, 1) - 1 FROM work
    """,
    """
    CREATE VIEW level AS
    WITH groups AS (SELECT DISTINCT queue, "group" FROM work WHERE "group" IS NOT NULL),
    change AS (
      SELECT came.queue, "group", time_bucket(INTERVAL 5 minutes, time) AS slot, number AS published,
        0 AS settled
      FROM came LEFT JOIN groups USING (queue)
      UNION ALL
      SELECT queue, "group", slot, 0, processed + dead + lost FROM work WHERE "group" IS NOT NULL
    ),
    ended AS (
      SELECT * FROM change
      UNION ALL
      SELECT DISTINCT queue, "group", time_bucket(INTERVAL 5 minutes, "at"), 0, 0 FROM change,
        (SELECT unnest([min(time), max(time)]) AS "at" FROM entry WHERE kind <> 'gap')
    ),
    summed AS (
      SELECT queue, "group", slot, sum(published) AS published, sum(settled) AS settled
      FROM ended GROUP BY queue, "group", slot
    ),
    so_far AS (
      SELECT *, sum(published) OVER up AS came, sum(settled) OVER up AS gone
      FROM summed WINDOW up AS (PARTITION BY queue, "group" ORDER BY slot)
    )
    SELECT *, greatest(0, max(gone - came) OVER whole) AS backlog,
      came - gone + greatest(0, max(gone - came) OVER whole) AS lag
    FROM so_far WINDOW whole AS (PARTITION BY queue, "group")
    """,
    """
    CREATE VIEW life AS
    SELECT *, held > 0 AND (SELECT max(time) FROM work) - last > INTERVAL 300 seconds AS vanished
    FROM (
      SELECT queue, "group", worker, max(agent) AS agent, min(time) AS first, max(time) AS last,
        greatest(0, sum(received - processed - retried - dead - stale - duplicates - cancelled - released)) AS held,
        sum(received) AS received, sum(processed) AS processed, sum(reclaimed) AS reclaimed,
        sum(lost) AS lost, sum(stale) AS stale
      FROM work WHERE worker IS NOT NULL GROUP BY queue, "group", worker
    )
    """,
    """
    CREATE VIEW answer AS
    SELECT agent AS speaker, before.agent AS answered, topic, epoch_ms(time) - epoch_ms(before.time) AS took
    FROM (
      SELECT *, lag({'agent': agent, 'time': time}) OVER (PARTITION BY topic ORDER BY time, seq) AS before
      FROM entry WHERE kind = 'channel' AND event IS NULL AND agent IS NOT NULL
    )
    WHERE before.agent <> agent AND epoch_ms(time) - epoch_ms(before.time) <= 600000
    """,
    """
    CREATE VIEW told AS
    SELECT fields['flag'] AS flag, agent, event, fields['token'] AS token, time, seq,
      fields['forced_from'] IS NOT NULL AS forced,
      lead(event) OVER w AS next, lead(agent) OVER w AS next_agent, lead(fields['token']) OVER w AS next_token,
      lead(fields['forced_from']) OVER w IS NOT NULL AS next_forced, lead(time) OVER w AS next_time,
      lag(event) OVER w AS former_event, lag(agent) OVER w AS former, lag(time) OVER w AS former_time,
      lag(fields['token']) OVER w AS former_token
    FROM entry
    WHERE kind = 'channel' AND event IN ('announced', 'satisfied', 'failed', 'released')
      AND fields['flag'] IS NOT NULL
    WINDOW w AS (PARTITION BY fields['flag'] ORDER BY time, seq)
    """,
    """
    CREATE VIEW hold AS
    SELECT *, CASE ended WHEN 'expired' THEN NULL
        WHEN 'open' THEN epoch_ms((SELECT max(time) FROM entry WHERE kind <> 'gap'))
        ELSE epoch_ms(next_time) END - epoch_ms(time) AS held,
      CASE WHEN former_event IN ('satisfied', 'failed', 'released') AND former <> agent
        THEN epoch_ms(time) - epoch_ms(former_time) END AS free,
      CASE WHEN ended NOT IN ('open', 'expired') THEN next_agent END AS ender,
      coalesce(lag(agent) OVER (PARTITION BY flag ORDER BY time, seq) <> agent, false) AS changed
    FROM (
      SELECT *, CASE WHEN next IS NULL THEN 'open'
        WHEN next = 'announced' THEN if(next_forced, 'taken', 'expired')
        WHEN coalesce(token = next_token, true) THEN next ELSE 'expired' END AS ended
      FROM told WHERE event = 'announced'
    )
    """,
    """
    CREATE VIEW attempt AS
    SELECT fields['task_id'] AS task_id, fields['task'] AS task, queue, fields['group'] AS "group",
      fields['worker'] AS worker, agent, cast(fields['attempt'] AS BIGINT) AS attempt, event AS outcome, time,
      make_timestamp(cast(fields['began'] AS BIGINT) * 1000) AS began,
      cast(fields['waited_ms'] AS DOUBLE) AS waited_ms, cast(fields['took_ms'] AS DOUBLE) AS took_ms,
      fields['error'][:200] AS error,
      nullif(trim(split_part(split_part(fields['error'], chr(10), 1), ':', 1))[:80], '') AS cause
    FROM entry WHERE kind = 'attempt'
    """,
    """
    CREATE VIEW task AS
    SELECT *, fields['meta']->>'$.reply_to' AS reply_to, fields['meta']->>'$.causation_id' AS cause,
      coalesce(fields['id'], id || '@' || substr(stream, 3)) AS task_id
    FROM entry WHERE kind = 'queue'
    """,
    """
    CREATE VIEW hourly AS
    SELECT * FROM (
      SELECT 'queue' AS what, queue AS name, 'entries' AS figure, hour, count(*) AS number FROM entries
      GROUP BY ALL
      UNION ALL SELECT 'topic', topic, 'entries', hour, count(*) FROM entries GROUP BY ALL
      UNION ALL SELECT 'queue', queue, 'processed', hour, sum(processed) FROM work GROUP BY ALL
      UNION ALL SELECT 'queue', queue, 'failed', hour, sum(failed) FROM work GROUP BY ALL
    ) WHERE name <> ''
    """,
)
_COUNTED = """
    count(*) FILTER (kind = 'channel' AND event IS NULL) AS messages,
    count(*) FILTER (kind = 'channel' AND event IS NOT NULL) AS events,
    count(*) FILTER (kind = 'queue') AS tasks, coalesce(sum(strlen(payload)), 0) AS bytes
"""
_TOOK = "round(quantile_cont(took, 0.5), 1) AS p50_ms, round(quantile_cont(took, 0.9), 1) AS p90_ms"
_HELD = """
    count(*) AS holds, coalesce(sum(held), 0) AS held_ms, round(quantile_cont(held, 0.5), 1) AS p50_ms,
    round(quantile_cont(held, 0.9), 1) AS p90_ms, max(held) AS max_ms,
""" + ", ".join(
    f"count(*) FILTER (ended = '{end}') AS {end}"
    for end in ("satisfied", "failed", "released", "taken", "expired", "open")
)


def _buckets(keys: str, *shares: float) -> str:
    """The number of tasks by keys, and percentiles, interpolated in the bucket that each lies in."""
    # One in the first bucket is only known to be at most 1 ms.
    found = ", ".join(
        f"if(min(n) FILTER (below + number >= {share} * total) = 0, NULL,"
        f" arg_min(2.0 ** (n - 1) + 2.0 ** (n - 1) * ({share} * total - below) / number, n)"
        f" FILTER (below + number >= {share} * total)) AS p{share * 100:.0f}_ms"
        for share in shares
    )
    return f"""
      SELECT {keys}, any_value(total) AS total, {found} FROM (
        SELECT *, sum(number) OVER (PARTITION BY {keys}) AS total,
          coalesce(sum(number) OVER (PARTITION BY {keys} ORDER BY n
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS below
        FROM (SELECT {keys}, n, sum(number) AS number FROM bucket GROUP BY ALL HAVING sum(number) > 0)
      ) GROUP BY ALL
    """


def _slow(keys: str, agent: str = "") -> str:
    by = ", ".join(
        f"row_number() OVER (ORDER BY {figure} DESC, {keys}) AS by_{name}"
        for name, figure in (("mean", "mean_ms"), ("p99", "p99_ms"), ("busy", "busy_ms"))
    )
    same = " AND ".join(f"t.{key} IS NOT DISTINCT FROM w.{key}" for key in keys.split(", "))
    return f"""
      SELECT * FROM (SELECT *, {by} FROM (
        SELECT {", ".join(f"t.{key}" for key in keys.split(", "))}, {"w.agent, " if agent else ""}
          total AS runs, busy_ms / total AS mean_ms, p50_ms, p99_ms, busy_ms
        FROM ({_buckets("what, " + keys, 0.5, 0.99)}) t
        JOIN (SELECT {keys}, sum(busy_ms) AS busy_ms{agent} FROM work GROUP BY {keys}) w ON {same}
        WHERE what = 'running'
      )) WHERE least(by_mean, by_p99, by_busy) <= 20
    """


def _noisy(what: str) -> str:
    return f"""
      SELECT '{what}' AS what, {what} AS name, count(*) AS entries, sum(strlen(payload)) AS bytes,
        count(*) / sum(count(*)) OVER () AS entries_share,
        sum(strlen(payload)) / sum(sum(strlen(payload))) OVER () AS bytes_share,
        row_number() OVER (ORDER BY count(*) DESC, {what}) AS by_entries,
        row_number() OVER (ORDER BY sum(strlen(payload)) DESC, {what}) AS by_bytes
      FROM entries WHERE {what} <> '' GROUP BY {what} QUALIFY least(by_entries, by_bytes) <= 20
    """


QUERIES = {
    "activity.agents": f"SELECT agent, {_COUNTED} FROM entries GROUP BY agent",
    "activity.times": f"SELECT hour AS time, {_COUNTED} FROM entries GROUP BY hour",
    "activity.topics": f"SELECT topic, {_COUNTED} FROM entries GROUP BY topic",
    "activity.heat": """
      SELECT agent, hour AS time, count(*) AS entries FROM entries WHERE agent IN (
        SELECT agent FROM entries WHERE agent IS NOT NULL GROUP BY agent ORDER BY count(*) DESC, agent LIMIT 20
      ) GROUP BY ALL""",
    "conversations.pairs": f"SELECT speaker, answered, count(*) AS answers, {_TOOK} FROM answer GROUP BY ALL",
    "conversations.topics": f"SELECT topic, count(*) AS answers, {_TOOK} FROM answer GROUP BY ALL",
    "conversations.agents": f"""
      SELECT agent, coalesce(answers, 0) AS answers, coalesce(was_answered, 0) AS was_answered,
        coalesce(agents, 0) AS agents, p50_ms, p90_ms
      FROM (SELECT speaker AS agent, count(*) AS answers, count(DISTINCT answered) AS agents, {_TOOK}
        FROM answer GROUP BY ALL)
      FULL JOIN (SELECT answered AS agent, count(*) AS was_answered FROM answer GROUP BY ALL) USING (agent)""",
    "conversations.requests": f"""
      SELECT queue, asker, count(*) AS requests, count(took) AS answers, {_TOOK} FROM (
        SELECT asked.queue, asked.agent AS asker, (
          SELECT epoch_ms(min(reply.time)) - epoch_ms(asked.time) FROM task AS reply
          WHERE reply.queue = asked.reply_to AND reply.time >= asked.time
            AND reply.correlation_id = coalesce(asked.correlation_id, asked.task_id)
            AND coalesce(reply.cause = asked.task_id, true) AND reply.task_id <> asked.task_id) AS took
        FROM task AS asked WHERE reply_to NOT LIKE '~replies.%'
      ) GROUP BY ALL""",
    "flags.flags": f"""
      SELECT flag, * EXCLUDE (flag, without_hold), coalesce(without_hold, 0) AS without_hold
      FROM (SELECT flag, {_HELD} FROM hold GROUP BY flag)
      LEFT JOIN (
        SELECT flag, count(*) AS without_hold FROM told WHERE event IN ('satisfied', 'failed')
          AND NOT coalesce(former_event = 'announced' AND coalesce(token = former_token, true), false)
        GROUP BY flag) USING (flag)""",
    "flags.agents": f"SELECT agent, count(DISTINCT flag) AS flags, {_HELD} FROM hold GROUP BY agent",
    "flags.contention": """
      SELECT * FROM (
        SELECT flag, count(DISTINCT agent) AS agents, count(*) AS holds, count(*) FILTER (changed) AS changes,
          count(*) FILTER (free <= 1000) AS handed_over, count(*) FILTER (ended = 'taken') AS taken,
          count(*) FILTER (ended IN ('satisfied', 'failed', 'released') AND ender <> agent) AS ended_by_force,
          round(quantile_cont(free, 0.5), 1) AS free_p50_ms
        FROM hold GROUP BY flag
      ) WHERE agents > 1 OR ended_by_force > 0""",
    "flags.takeovers": """
      SELECT ender AS "by", agent AS held_by, flag, ended, count(*) AS times, max(time) AS last FROM hold
      WHERE ended = 'taken' OR ender <> agent GROUP BY ALL""",
    "tasks.outcomes": f"""
      SELECT queue, "group", sum(processed + dead) AS tasks, sum(processed + failed) AS runs,
        {", ".join(f"sum({event}) AS {event}" for event in _EVENTS)},
        sum(processed + failed) / nullif(sum(processed + dead), 0) AS attempts,
        sum(retried) / nullif(sum(processed + failed), 0) AS retried_share,
        sum(dead) / nullif(sum(processed + dead), 0) AS dead_share, sum(busy_ms) AS busy_ms
      FROM work GROUP BY ALL""",
    "tasks.throughput": """
      SELECT queue, time, sum(published) AS published, sum(received) AS received,
        sum(processed) AS processed, sum(failed) AS failed, sum(retried) AS retried, sum(dead) AS dead,
        sum(busy_ms) AS busy_ms, sum(processed) / 3600 AS processed_rate
      FROM (
        SELECT queue, hour AS time, 0 AS published, received, processed, failed, retried, dead, busy_ms FROM work
        UNION ALL SELECT queue, date_trunc('hour', time), number, 0, 0, 0, 0, 0, 0 FROM came
      ) GROUP BY ALL""",
    "tasks.timings": f"""
      WITH took AS ({_buckets('what, queue, "group"', 0.5, 0.9, 0.99)})
      SELECT took.queue, took."group", what, (SELECT coalesce(sum(number), 0) FROM bucket b WHERE
          b.what = 'waiting' AND b.queue = took.queue AND b."group" IS NOT DISTINCT FROM took."group") AS tasks,
        (SELECT coalesce(sum(number), 0) FROM bucket b WHERE
          b.what = 'running' AND b.queue = took.queue AND b."group" IS NOT DISTINCT FROM took."group") AS runs,
        (SELECT sum(if(what = 'running', busy_ms, waited_ms)) FROM work w WHERE w.queue = took.queue
          AND w."group" IS NOT DISTINCT FROM took."group") / total AS mean_ms, p50_ms, p90_ms, p99_ms
      FROM took""",
    "tasks.causes": """
      SELECT *, dead_letters / (SELECT count(*) FROM entry WHERE kind = 'dead_letter' AND entry.queue = c.queue
        AND nullif(fields['group'], '') IS NOT DISTINCT FROM c."group") AS dead_letters_share
      FROM (
        SELECT queue, nullif(fields['group'], '') AS "group",
          nullif(left(trim(split_part(split_part(fields['error'], chr(10), 1), ':', 1)), 80), '') AS cause,
          count(*) AS dead_letters, avg(try_cast(fields['attempts'] AS BIGINT)) AS attempts,
          min(time) AS first, max(time) AS last,
          left(arg_max(fields['error'], (time, seq)), 200) AS latest_error
        FROM entry WHERE kind = 'dead_letter' AND queue <> '' GROUP BY ALL
      ) AS c""",
    "attempts.slowest": """
      SELECT * EXCLUDE (time, cause) FROM attempt WHERE took_ms IS NOT NULL
      ORDER BY took_ms DESC, task_id, attempt LIMIT 20""",
    "attempts.workers": f"""
      SELECT queue, "group", worker, agent, count(*) AS attempts,
        {", ".join(f"count(*) FILTER (outcome = '{name}') AS {name}" for name in _OUTCOMES)},
        avg(took_ms) AS mean_ms, max(took_ms) AS longest_ms, coalesce(sum(took_ms), 0) AS busy_ms,
        avg(waited_ms) AS mean_waited_ms
      FROM attempt GROUP BY ALL""",
    "attempts.errors": """
      SELECT queue, "group", cause, count(*) AS attempts, count(*) FILTER (outcome = 'dead') AS dead,
        coalesce(sum(took_ms), 0) AS busy_ms, min(time) AS first, max(time) AS last,
        arg_max(error, (time, error)) AS latest_error
      FROM attempt WHERE cause IS NOT NULL GROUP BY ALL""",
    "lag.groups": """
      SELECT queue, "group", sum(published) AS published, sum(settled) AS settled,
        max(backlog) AS backlog_before, arg_max(lag, slot) AS lag,
        epoch_ms((SELECT max(slot) FROM level))
          - epoch_ms(min(slot) FILTER (came + backlog > last_gone)) + 300000 AS behind_ms,
        max(lag) AS highest, min(slot) FILTER (lag = most) AS highest_at
      FROM (SELECT *, max(gone) OVER whole AS last_gone, max(lag) OVER whole AS most FROM level
        WINDOW whole AS (PARTITION BY queue, "group"))
      GROUP BY ALL""",
    "lag.times": """
      WITH found AS (
        SELECT queue, "group", date_trunc('hour', slot) AS time, sum(published) AS published,
          sum(settled) AS settled, arg_max(lag, slot) AS lag, max(lag) AS highest
        FROM level GROUP BY ALL),
      next AS (SELECT *, lead(time) OVER (PARTITION BY queue, "group" ORDER BY time) AS until FROM found)
      SELECT * EXCLUDE until FROM next WHERE published > 0 OR settled > 0 OR highest > 0
      UNION ALL
      SELECT queue, "group", unnest(generate_series(time + INTERVAL 1 hour, until - INTERVAL 1 hour,
        INTERVAL 1 hour)), 0, 0, lag, lag FROM next WHERE lag > 0""",
    "lag.workers": """
      SELECT queue, "group", worker, agent, first, last, vanished, held, received, processed, reclaimed, lost,
        stale FROM life WHERE vanished OR reclaimed > 0 OR lost > 0 OR stale > 0""",
    "lag.crashes": """
      SELECT queue, "group", time, sum(reclaimed) AS reclaimed, sum(lost) AS lost, sum(stale) AS stale,
        sum(vanished) AS vanished FROM (
        SELECT queue, "group", hour AS time, reclaimed, lost, stale, 0 AS vanished FROM work
        UNION ALL SELECT queue, "group", date_trunc('hour', last), 0, 0, 0, 1 FROM life WHERE vanished
      ) GROUP BY ALL HAVING sum(reclaimed) + sum(lost) + sum(stale) + sum(vanished) > 0""",
    "slowest.queues": _slow("queue"),
    "slowest.groups": _slow('queue, "group"'),
    "slowest.workers": _slow('queue, "group", worker', ", max(agent) AS agent"),
    "slowest.noisiest": " UNION ALL ".join(
        f"({_noisy(what)})" for what in ("agent", "topic", "queue")
    ),
    "anomalies.hours": """
      WITH ends AS (SELECT min(hour) AS first, max(hour) AS last FROM hourly),
      series AS (
        SELECT what, name, figure, unnest(generate_series(greatest(since, first + INTERVAL 1 hour),
          last - INTERVAL 1 hour, INTERVAL 1 hour)) AS hour
        FROM ends, (
          SELECT what, name, figure, min(hour) AS since FROM hourly GROUP BY what, name, figure)),
      filled AS (
        SELECT what, name, figure, hour, coalesce(number, 0)::DOUBLE AS number
        FROM series LEFT JOIN hourly USING (what, name, figure, hour)),
      before AS (
        SELECT *, list(number) OVER w AS earlier FROM filled WINDOW w AS (
          PARTITION BY what, name, figure, extract('hour' FROM hour) ORDER BY hour
          ROWS BETWEEN 28 PRECEDING AND 1 PRECEDING)),
      middle AS (SELECT *, list_median(earlier) AS expected FROM before WHERE len(earlier) >= 3),
      spread AS (
        SELECT *, greatest(1.4826 * list_median([abs(x - expected) FOR x IN earlier]), sqrt(expected), 1)
          AS deviation FROM middle),
      scored AS (SELECT *, (number - expected) / deviation AS score FROM spread)
      SELECT what, name, figure, hour AS time, number, if(score > 0, 'more', 'less') AS direction, expected,
        greatest(expected - 3.5 * deviation, 0) AS low, expected + 3.5 * deviation AS high, score,
        len(earlier) AS days
      FROM scored WHERE abs(score) > 3.5""",
}


def answers(path: str | os.PathLike[str], names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of these tables from an archive's current files, which the log names."""
    at = place(path)
    files = [at.uri(one).removeprefix("file://") for one in ArchiveTable(at).snapshot().files]
    with duckdb.connect() as connection:
        # Without a zone: those of DuckDB are in an extension that it would fetch.
        connection.execute(
            "CREATE VIEW entry AS SELECT * REPLACE (make_timestamp(epoch_us(time)) AS time) FROM"
            f" read_parquet({files!r}, hive_partitioning = true, union_by_name = true)"
        )
        for view in _VIEWS:
            connection.execute(view)
        return {name: connection.sql(QUERIES[name]).to_arrow_table().to_pylist() for name in names}
