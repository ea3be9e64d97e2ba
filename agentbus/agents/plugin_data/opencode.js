// AgentBus for OpenCode: the MCP server, the name of the agent, and the hooks.
// Written by `agentbus install`; it is replaced by the next one.
import { spawn } from "node:child_process"

const PROGRAM = @AGENTBUS_JSON@

// Returns what `agentbus hook opencode EVENT` answers, null for nothing. It never fails.
function hook(event, input, directory) {
  return new Promise((resolve) => {
    let said = ""
    const child = spawn(PROGRAM, ["hook", "opencode", event], {
      cwd: directory,
      stdio: ["pipe", "pipe", "ignore"],
    })
    child.on("error", () => resolve(null))
    child.stdin.on("error", () => {})
    child.stdout.on("data", (data) => (said += data))
    child.on("close", () => {
      try {
        resolve(JSON.parse(said))
      } catch {
        resolve(null)
      }
    })
    child.stdin.end(JSON.stringify({ cwd: directory, ...input }))
  })
}

export const AgentBus = async ({ directory }) => ({
  config: async (config) => {
    config.mcp ??= {}
    config.mcp.agentbus ??= { type: "local", command: [PROGRAM, "mcp"] }
  },
  event: async ({ event }) => {
    const info = event.properties?.info
    const sessionID = event.properties?.sessionID ?? info?.id
    if (["session.created", "session.deleted"].includes(event.type) && !info?.parentID) {
      await hook(event.type, { sessionID }, directory)
    }
  },
  "tool.execute.before": async (input, output) => {
    const answer = await hook("tool.execute.before", { ...input, args: output.args }, directory)
    if (answer?.deny) throw new Error(answer.deny)
  },
  "tool.execute.after": async (input, output) => {
    const { tool, sessionID, callID } = input
    const answer = await hook("tool.execute.after", { tool, sessionID, callID }, directory)
    if (!answer?.context) return
    if (typeof output.output === "string") output.output += `\n\n${answer.context}`
    else output.content?.push({ type: "text", text: answer.context })
  },
})
