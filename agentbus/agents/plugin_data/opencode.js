// AgentBus for OpenCode: tools, a name for each session, notifications, and leases of what is edited.
// Written by `agentbus install`, which replaces it. Whatever fails in it, OpenCode goes on as without it.
import { spawn } from "node:child_process"

const PROGRAM = @AGENTBUS_JSON@

const EDITS = ["edit", "write", "multiedit", "patch", "apply_patch"]
const HOOK_MS = 10_000
const IDLE_MS = 3_660_000
const LONGEST = 100_000

// Returns what `agentbus hook opencode EVENT` answers, {} for nothing and whatever goes wrong.
// `started` gets the process.
function hook(event, given, ms = HOOK_MS, started = () => {}) {
  return new Promise((resolve) => {
    try {
      // What a session reads first names the tools.
      const words = ["hook", "opencode", event, ...(event === "session.created" ? ["--tools"] : [])]
      const child = spawn(PROGRAM, words, { stdio: ["pipe", "pipe", "ignore"] })
      const timer = setTimeout(() => child.kill("SIGKILL"), ms)
      let said = ""
      const end = () => {
        clearTimeout(timer)
        try {
          const answer = JSON.parse(said)
          resolve(answer && typeof answer === "object" ? answer : {})
        } catch {
          resolve({})
        }
      }
      child.on("error", end)
      child.on("close", end)
      child.stdin.on("error", () => {})
      child.stdout.on("error", () => {})
      child.stdout.setEncoding("utf8")
      child.stdout.on("data", (piece) => {
        if (said.length < LONGEST) said += piece
      })
      child.stdin.end(JSON.stringify(given))
      started(child)
    } catch {
      resolve({})
    }
  })
}

export const AgentBus = async ({ client, directory }) => {
  const sessions = new Map()

  // The end of its id: the beginning is the time.
  const sub = ({ id, root }) => (id === root.id ? {} : { agent_id: id.slice(4).slice(-6) })

  // Runs a hook for a session; a subagent's session acts for the one that it belongs to.
  function ask(session, event, given = {}, ...rest) {
    const from = { sessionID: session.root.id, cwd: directory, ...sub(session) }
    return hook(event, { ...from, ...given }, ...rest)
  }

  // Returns what is known of a session, which begins with its first event, also one that is resumed.
  function enter(id, info) {
    if (!sessions.has(id)) sessions.set(id, begin(id, info))
    return sessions.get(id)
  }

  async function begin(id, info) {
    const session = { id, texts: [], again: false, aborted: false, turn: 0 }
    try {
      info ??= (await client.session.get({ path: { id } })).data
    } catch {}
    session.root = info?.parentID ? (await enter(info.parentID)).root : session
    if (session.root === session) await prime(session)
    return session
  }

  async function prime(session) {
    const answer = await ask(session, "session.created")
    if (typeof answer.agent === "string") session.agent = answer.agent
    if (typeof answer.context === "string") session.texts.push(answer.context)
  }

  // Returns the texts that a model has not seen, with that of an answer.
  function news(session, answer) {
    if (typeof answer.context === "string") session.texts.push(answer.context)
    return session.texts.splice(0).join("\n\n")
  }

  async function prompt(session, text) {
    session.prompted = true
    const { agent, model } = session.last ?? {}
    const body = { agent, model, parts: [{ type: "text", text }] }
    const { error } = await client.session.promptAsync({ path: { id: session.id }, body })
    if (error) session.texts.push(text)
  }

  async function idle(session) {
    const { turn, aborted } = session
    const answer = await ask(session, "session.idle", { again: session.again || aborted })
    // Its user has stopped it, and goes on.
    if (aborted) return
    if (typeof answer.prompt === "string") {
      session.again = true
      return prompt(session, answer.prompt)
    }
    // A turn may have begun meanwhile.
    if (session.turn !== turn || !sessions.has(session.id)) return
    stop(session)
    const woken = await ask(session, "Wake", {}, IDLE_MS, (child) => (session.waiting = child))
    if (typeof woken.prompt === "string") await prompt(session, woken.prompt)
  }

  function stop(session) {
    session.waiting?.kill()
    session.waiting = undefined
  }

  async function end(session) {
    stop(session)
    sessions.delete(session.id)
    await ask(session, "session.deleted")
  }

  async function take(type, { sessionID, info, error }) {
    const id = sessionID ?? info?.id
    if (type === "session.created") return enter(id, info)
    if (!sessions.has(id)) return
    const session = await enter(id)
    if (type === "session.deleted") return end(session)
    if (session.root !== session) {
      // A subagent has ended: its leases end.
      if (type === "session.idle") await ask(session, "session.idle")
      return
    }
    if (error?.name === "MessageAbortedError") session.aborted = true
    if (type === "session.compacted") return prime(session)
    if (type === "session.idle") return idle(session)
  }

  // A hook that fails does nothing.
  const guarded = (run) => async (input, output) => {
    try {
      await run(input, output)
    } catch {}
  }

  return {
    config: guarded((config) => {
      config.mcp ??= {}
      // A tool may wait for 45 seconds; a client that says nothing waits for 5.
      config.mcp.agentbus ??= { type: "local", command: [PROGRAM, "mcp"], timeout: 60_000 }
    }),

    event: guarded(({ event }) => take(event.type, event.properties ?? {})),

    "shell.env": guarded(async ({ sessionID }, output) => {
      if (!sessionID) return
      const session = await enter(sessionID)
      if (session.root.agent) output.env.AGENTBUS_AGENT = session.root.agent
      if (session.root !== session) output.env.AGENTBUS_SUB = sub(session).agent_id
    }),

    "chat.message": guarded(async ({ sessionID }, { message, parts }) => {
      const session = await enter(sessionID)
      if (session.root !== session) return
      session.turn += 1
      session.aborted = false
      stop(session)
      session.last = { agent: message.agent, model: message.model }
      if (!session.prompted) session.again = false
      session.prompted = false
      const text = news(session, await ask(session, "chat.message"))
      const id = `prt_${Date.now().toString(36)}${Math.random().toString(36).slice(2)}`
      if (text) parts.push({ id, messageID: message.id, sessionID, type: "text", text, synthetic: true })
    }),

    "tool.execute.before": async ({ tool, sessionID }, output) => {
      let answer = {}
      await guarded(async () => {
        const session = await enter(sessionID)
        const { args } = output
        // One server has the calls of all sessions.
        if (tool.startsWith("agentbus_")) args._session = session.root.id
        if (!EDITS.includes(tool)) return
        const { filePath, patchText } = args
        answer = await ask(session, "tool.execute.before", { tool, args: { filePath, patchText } })
      })()
      if (typeof answer.deny === "string") throw new Error(answer.deny)
    },

    "tool.execute.after": guarded(async ({ tool, sessionID }, output) => {
      const session = await enter(sessionID)
      const text = news(session, await ask(session, "tool.execute.after", { tool }))
      if (!text) return
      if (typeof output?.output === "string") output.output += `\n\n${text}`
      else if (Array.isArray(output?.content)) output.content.push({ type: "text", text })
      else session.texts.push(text)
    }),

    dispose: guarded(async () => {
      const all = await Promise.all(sessions.values())
      await Promise.all(all.filter((one) => one.root === one).map(end))
    }),
  }
}
