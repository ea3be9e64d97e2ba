#!lua flags=no-writes
-- Reads the messages past a reader's cursors, oldest first, and returns how far it read.
-- KEYS: channel, heard, one cursor for each topic (or the one cursor of all topics)
-- ARGV: start ('' = after the cursors, else the id to start from, inclusive), limit, most entries to
--       examine, agent to leave out ('' for none), then for each cursor: its field in `heard`, its topic
--       ('' for all), the id that its messages come after with a start, or if the cursor does not exist
--       ('': none is known)
-- Returns: {'entries', entries, examined id ('' if there were none), 1 if there may be more, missed entries ('': some, or none),
--          ordinal of the entry before the first examined one (-1: unknown), channel's last id, how many entries
--          were examined up to each of those returned, and in all, for each cursor the id that its messages
--          come after},
--          {'arrive'} if a cursor does not exist and no id was given for it, {'bad', cursor key, value},
--          or {'ahead', cursor key, value, channel's last id}
--@include ids
--@include topic_and_agent
--@include stream
--@include heard
local start, limit, most, omit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local info = stream(KEYS[1])
local last = info['last-generated-id']
local trimmed = info['entries-added'] - info['length']

local wanted, positions, from, ordinal, missed, joins = {}, {}, nil, nil, '0', false
for i = 3, #KEYS do
  local field, topic, at = ARGV[5 + 3 * (i - 3)], ARGV[6 + 3 * (i - 3)], ARGV[7 + 3 * (i - 3)]
  if start == '' then
    local kept = redis.pcall('GET', KEYS[i])
    if type(kept) == 'table' then return { 'bad', KEYS[i], 'another type' } end
    at = kept or at
    if not kept and at == '' then return { 'arrive' } end
    joins = joins or not kept
    if not string.find(at, '^%d+%-%d+$') and not string.find(at, '^%d+$') then
      return { 'bad', KEYS[i], at }
    end
    -- Reject numbers beyond 64 bits, which are not ids.
    local ms, seq = parts(at)
    if longer(ms, '18446744073709551615') or longer(seq, '18446744073709551615') then
      return { 'bad', KEYS[i], at }
    end
    if newer(at, last) then return { 'ahead', KEYS[i], at, last } end
    local position, lost = heard(info, KEYS[2], field, at)
    if position and trimmed - position > (tonumber(missed) or 0) then missed = tostring(trimmed - position) end
    if lost and missed == '0' then missed = '' end
    if not from or newer(from, at) then from, ordinal = at, position end
  end
  wanted[topic], positions[#positions + 1] = at, at
end
if ordinal and ordinal < trimmed then ordinal = trimmed end

local all = wanted['']
local found, offsets, examined, count, more = {}, {}, '', 0, 0
local entries = {}
if start ~= '' then
  entries = redis.call('XRANGE', KEYS[1], start, '+', 'COUNT', most)
elseif newer(last, from) then
  entries = redis.call('XRANGE', KEYS[1], '(' .. from, '+', 'COUNT', most)
end
for _, entry in ipairs(entries) do
  local id = entry[1]
  local topic, agent = topic_and_agent(entry[2])
  local after = all or (topic ~= '' and wanted[topic])
  if after and (omit == '' or agent ~= omit) and newer(id, after) then
    if #found == limit then
      more = 1
      break
    end
    found[#found + 1] = entry
    offsets[#offsets + 1] = count + 1
  end
  examined = id
  count = count + 1
end
if count == most then more = 1 end
-- Create the cursor even if no message follows it.
if count == 0 and last ~= '0-0' and (joins or missed ~= '0') then examined = last end
-- At the end of the stream, the ordinals are always known.
if examined == last then ordinal = info['entries-added'] - count end
return { 'entries', found, examined, more, missed, ordinal or -1, last, offsets, count, positions }
