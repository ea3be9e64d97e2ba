#!lua flags=no-writes
-- Reads the unread messages of an inbox: urgent ones and others, each oldest first.
-- KEYS: inbox, its positions
-- ARGV: most messages, most bytes, where to begin ('': with the unread ones; an id or -: those that were read, too),
--       topic ('' for any), sender ('' for any), first message of the thread ('' for any), how many urgent messages
--       and how many others to pass over
-- Returns: {now in ms, inbox's last id, unread messages, 1 if there are more of these, urgent ones, others}
--@include ids
--@include stream
--@include inbox
local most, bytes, again = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] ~= ''
local topic, sender, thread = ARGV[4], ARGV[5], ARGV[6]
local heard, _, beyond = read_position(KEYS[2])
local latest = beyond >= 0 and redis.pcall('HGET', KEYS[2], 'urgent')
latest = type(latest) == 'string' and is_id(latest) and latest or '0-0'
local lists, sizes, full = { {}, {} }, { 0, 0 }, { false, false }
local pass, more = { tonumber(ARGV[7]), tonumber(ARGV[8]) }, 0

local function matches(id, named)
  if topic ~= '' and named['topic'] ~= topic then return false end
  if sender ~= '' and named['agent_id'] ~= sender then return false end
  local own = thread ~= '' and string.sub(thread, 1, #id + 1) == id .. '@'
  return thread == '' or own or named['thread'] == thread or named['reply_to'] == thread
end
local from, start = heard, again and ARGV[3] or '(' .. heard
repeat
  local page = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', 50)
  for _, entry in ipairs(page) do
    from = entry[1]
    local named, size = {}, 0
    for i = 1, #entry[2] - 1, 2 do
      named[entry[2][i]] = entry[2][i + 1]
      size = size + #entry[2][i + 1]
    end
    local is_read = not again and beyond > 0 and redis.call('HGET', KEYS[2], from)
    if not is_read and matches(from, named) then
      local at = named['urgent'] == '1' and not again and 1 or 2
      if pass[at] > 0 then
        pass[at] = pass[at] - 1
      elseif full[at] or #lists[at] == most or (#lists[at] > 0 and sizes[at] + size > bytes) then
        full[at], more = true, 1
      else
        lists[at][#lists[at] + 1] = entry
        sizes[at] = sizes[at] + size
      end
    end
  end
  -- More ordinary messages follow, but no urgent one.
  start = '(' .. from
  local over = full[2] and not newer(latest, from)
until #page < 50 or over
local time = redis.call('TIME')
local now = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return { now, stream(KEYS[1])['last-generated-id'], unread(KEYS[1], KEYS[2]), more, lists[1], lists[2] }
