-- decode_task(text, known, fixed): returns the words of a task that is delayed or depends on
-- others: its priority, which must be a key of `known`, and other words about it, `fixed` in all,
-- then its fields and values. For a malformed text of another program, returns the words of an
-- entry that workers dead-letter as malformed.
-- checked_task(task, text, known, fixed): the same of a task that is decoded.
local function checked_task(task, text, known, fixed)
  local sound = type(task) == 'table' and #task > fixed and #task < 4000 and (#task - fixed) % 2 == 0
  for i = 1, sound and #task or 0 do sound = sound and type(task[i]) == 'string' end
  sound = sound and known[task[1]] and (fixed == 2 or string.find(task[3], '^%d*$') and #task[3] < 16)
  if sound then return task end
  task = { 'normal' }
  for i = 2, fixed do task[i] = '' end
  for _, word in ipairs({ 'payload', text, 'meta', '!' }) do task[#task + 1] = word end
  return task
end
local function decode_task(text, known, fixed)
  return checked_task(decode(text), text, known, fixed)
end
