-- Written by vllm-spark; the same text on every Spark. route.cfg loads it for the route: which model a request names.
-- haproxy.cfg loads it for the log of the edge: which model an answer names, how many tokens it says that it has
-- (`usage`), and how many events a stream has. Answers pass at once and unchanged. Only the beginning and the end of an
-- answer are kept, and no text of it reaches the log.

-- How much of a text Lua reads at once, and after how many seconds of it HAProxy's other work has its turn.
local PIECE_BYTES, TURN_S = 32768, 0.02
-- The bodies of a person wait for this many times what reading them has taken, beyond a first debt: each thread has
-- most of its time for others, however many bodies come.
local WAITS, DEBT_S = 4, 0.2
-- Each string takes a step of Lua. 16 MiB without more strings are read in a few turns, and no request has so many.
local MOST_STRINGS = 250000
-- The longest model of a request, as it is spelt.
local SPELT_BYTES = 1024
-- It stands for an escaped quote or backslash, because no name has it.
local HIDDEN = "\xff\xff"
local BRACKETS = { "{", "}", "[", "]" }
local ESCAPED = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
-- The first event of a stream of /v1/responses and of /v1/messages has its model in an object with one of these names.
local OBJECTS_IN_EVENT = { response = true, message = true }
-- The beginning of an answer, and what of it may stand in the log.
local BEGINNING_BYTES, NAME_BYTES, NAME = 4096, 128, "^%w[%w._/:@+-]*$"

-- Return the text of a JSON string without its quotes. Only an ASCII text is exact: a route has no other.
local function decoded(spelt)
  return (spelt:gsub("\\(.)(%x?%x?%x?%x?)", function(mark, hex)
    if mark == "u" and #hex == 4 then return utf8.char(tonumber(hex, 16)) end
    return (ESCAPED[mark] or mark) .. hex
  end))
end

-- Return whether a text has a bracket. It takes a tenth of the time of a pattern.
local function has_brackets(text)
  for _, mark in ipairs(BRACKETS) do
    if text:find(mark, 1, true) then return true end
  end
end

-- Return a function that reads the next piece of a JSON object. It returns the model until there, nil without one, how
-- many keys of the object are `model`, and how many strings there are. `objects`: names of objects in it whose model counts
-- too. What Python's json refuses may have any model.
local function reader(objects)
  local depth, before, held, keys, count, strings = 0, "", "", {}, 0, 0
  local in_string, is_key, spelt, model = false, false, nil, nil

  -- Outside of strings, up to a quote or to the end of the piece.
  local function structure(text, is_quote)
    if has_brackets(text) then
      local marks = text:gsub("[^{}%[%]]+", "")
      depth = depth + #marks - 2 * #marks:gsub("[{%[]+", "")
    end
    local counts = depth == 1 or depth == 2 and objects[keys[1]]
    if counts or not is_quote then before = text:match("^.*(%S)") or before end
    is_key = before ~= ":"
    spelt = counts and (is_key or keys[depth] == "model") and "" or nil
  end

  local function string_has_ended()
    if not is_key then
      model = #spelt <= SPELT_BYTES and decoded(spelt) or spelt
    else
      keys[depth] = #spelt <= SPELT_BYTES and decoded(spelt)
      if depth == 1 and keys[1] == "model" then count = count + 1 end
    end
  end

  return function(piece)
    local text = held .. piece
    held = ""
    if text:find("\\", 1, true) then
      text = text:gsub('\\[\\"]', HIDDEN)
      -- What it escapes is in the next piece.
      if text:sub(-1) == "\\" then text, held = text:sub(1, -2), "\\" end
    end
    local from = 1
    while from <= #text do
      local at = text:find('"', from, true)
      local to = (at or 0) - 1
      if not in_string then
        structure(text:sub(from, to), at)
      elseif spelt then
        if #spelt <= SPELT_BYTES then spelt = spelt .. text:sub(from, to) end
        if at then string_has_ended() end
      end
      if not at then break end
      if in_string then strings = strings + 1 end
      in_string, from = not in_string, at + 1
    end
    return model, count, strings
  end
end

-- Person -> when the debt of her bodies is paid, by this thread.
local paid = {}

local function now()
  local date = core.now()
  return date.sec + date.usec / 1e6
end

-- Let others go on until a person has a turn. HAProxy looks at its sockets meanwhile. If Lua only yields, up to 200
-- turns of all bodies follow one another before it does (tune.runqueue-depth).
local function wait_for_turn(person, least_ms)
  repeat
    local wait_ms = math.max(least_ms, math.ceil(((paid[person] or 0) - DEBT_S - now()) * 1000))
    if wait_ms > 0 then core.msleep(wait_ms) end
    least_ms = 0
  until wait_ms <= 0
end

-- Return why the model of a body cannot be known, nil if it can. Python takes the last of two keys, and every Unicode:
-- what the engine would read in another way, the edge refuses.
local function fault_of(body, model, count, strings)
  if strings > MOST_STRINGS then return "it has more than " .. MOST_STRINGS .. " strings" end
  if body:find("^.?[\0\xfe\xff]") then return "the body is not UTF-8" end
  if count > 1 then return "the body names it more than once" end
  if model and #model > SPELT_BYTES then return "it is too long" end
  if model and model:find("%c") then return "it has a control character" end
end

-- Read a body from `offset` for a turn. Return where the next turn begins, nil at the end, and the model and fault until
-- there.
local function take_turn(body, read, offset)
  local ends, model, count, strings = os.clock() + TURN_S, nil, 0, 0
  repeat
    model, count, strings = read(body:sub(offset, offset + PIECE_BYTES - 1))
    offset = offset + PIECE_BYTES
  until offset > #body or strings > MOST_STRINGS or os.clock() > ends
  local has_ended = offset > #body or strings > MOST_STRINGS
  return not has_ended and offset or nil, model, fault_of(body, model, count, strings)
end

-- Read the model of a request into txn.asked, and take away txn.fault if it can be read.
local function read_model(transaction)
  local person, read, offset = transaction:get_var("txn.who") or "", reader({}), 1
  local model, fault
  repeat
    wait_for_turn(person, offset == 1 and 0 or 1)
    local began, body = os.clock(), transaction.f:req_body()
    local is_large = #body > PIECE_BYTES
    offset, model, fault = take_turn(body, read, offset)
    -- Others never wait with a copy of theirs, which may be large.
    body = nil
    if is_large then collectgarbage() end
    -- The clock is that of all threads, so a busy edge asks for longer waits.
    paid[person] = math.max(paid[person] or 0, now()) + WAITS * (os.clock() - began)
  until not offset
  if fault then
    transaction:set_var("txn.fault", fault)
  else
    transaction:unset_var("txn.fault")
    if model then transaction:set_var("txn.asked", model) end
  end
end

core.register_action("read_model", { "http-req" }, read_model)

-- `usage` stands behind the text of an answer, and in one of the last events of a stream.
local KEPT_BYTES = 4096
-- The objects around `usage`. Streams of /v1/responses have `response` around it.
local AROUND, AROUND_IN_EVENT = 1, 2
-- Variable of the log -> its names in `usage`, which are added: those of the cache stand beside `input_tokens` in
-- /v1/messages, and elsewhere a number includes them.
local FIGURES = {
  ["txn.in_tokens"] = { "input_tokens", "prompt_tokens", "cache_read_input_tokens", "cache_creation_input_tokens" },
  ["txn.out_tokens"] = { "output_tokens", "completion_tokens" },
}

-- The first event of /v1/messages, reversed: its `usage` has no token of the answer yet.
local START = '"trats_egassem"%s*:%s*"epyt"'

-- Return what is in `usage`, nil without it. `text` is the end of a JSON text, reversed: nothing is open at that end, so
-- from there it is certain which quotes and braces are structure. A model or a client has written what is in strings.
local function usage_of(text, around)
  local depth, in_string, ends, from = 0, false, {}, 1
  while true do
    local at = text:find(in_string and '"' or '["{}%[%]]', from)
    if not at then return nil end
    local mark = text:sub(at, at)
    from = at + 1
    if mark == '"' then
      -- A quote behind an odd number of backslashes is a part of its string.
      local slashes = #text:match("^\\*", from)
      from = from + slashes
      if slashes % 2 == 0 then in_string = not in_string end
    elseif mark == "}" or mark == "]" then
      depth = depth + 1
      ends[depth] = from
    else
      depth = depth - 1
      if depth < 0 then return nil end
      if mark == "{" and depth >= 1 and depth <= around and text:find('^%s*:%s*"egasu"%s*[,{]', from) then
        return (text:sub(ends[depth + 1], at - 1):reverse():gsub("%b{}", ""))
      end
    end
  end
end

-- Return what is in the last `usage` of a stream. `text` is its end, reversed.
local function usage_of_events(text)
  -- The last event may be cut.
  local ended = text:find("\n", 1, true)
  for line in text:sub(ended or #text + 1):gmatch("[^\n]+") do
    local usage = usage_of(line, AROUND_IN_EVENT)
    if usage and not line:find(START) then return usage end
  end
end

local Tokens = { id = "edge-tokens", flags = filter.FLT_CFG_FL_HTX }
Tokens.__index = Tokens

function Tokens:new()
  return setmetatable({ first = "", kept = "", events = 0, streams = false, complete = false }, self)
end

local function begin(self, message)
  local headers = message:get_headers()
  -- A compressed answer says nothing here.
  if not message:is_resp() or headers["content-encoding"] then return end
  local kind = headers["content-type"]
  self.streams = kind ~= nil and kind[0]:find("^text/event%-stream") ~= nil
  filter.register_data_filter(self, message.channel)
end

local function keep(self, message)
  local length = message:input()
  if #self.first < BEGINNING_BYTES then self.first = self.first .. message:body(0, BEGINNING_BYTES - #self.first) end
  for offset = self.streams and 0 or math.max(0, length - KEPT_BYTES), length - 1, KEPT_BYTES do
    local part = message:body(offset, KEPT_BYTES)
    if self.streams then
      for _ in (self.kept:sub(-1) .. part):gmatch("\n\n") do self.events = self.events + 1 end
    end
    self.kept = (self.kept .. part):sub(-KEPT_BYTES)
  end
end

-- Return the model that an answer or the first event of a stream names, nil without one that may stand in the log.
local function model_of(text, streams)
  if streams then text = ("\n" .. text):match("\ndata: ?([^\n]*)") or "" end
  local model = reader(streams and OBJECTS_IN_EVENT or {})(text)
  if model and #model <= NAME_BYTES and model:find(NAME) then return model end
end

local function say(self, transaction)
  local model = model_of(self.first, self.streams)
  if model then transaction:set_var("txn.model", model) end
  local usage
  local text = self.kept:reverse()
  if self.streams then
    transaction:set_var("txn.events", self.events)
    usage = usage_of_events(text)
  elseif self.complete then
    usage = usage_of(text, AROUND)
  end
  for variable, names in pairs(usage and FIGURES or {}) do
    local sum
    for _, name in ipairs(names) do
      local figure = usage:match('"' .. name .. '"%s*:%s*(%d+)')
      if figure then sum = (sum or 0) + tonumber(figure) end
    end
    if sum then transaction:set_var(variable, sum) end
  end
end

-- HAProxy cuts an answer whose filter fails. A figure that is missing is only a dash in the log.
function Tokens:http_headers(_, message)
  pcall(begin, self, message)
end

function Tokens:http_payload(_, message)
  pcall(keep, self, message)
end

function Tokens:http_end(_, message)
  self.complete = self.complete or message:is_resp()
end

-- Also after an answer that was cut, or whose client has gone.
function Tokens:end_analyze(transaction, channel)
  if channel:is_resp() then pcall(say, self, transaction) end
end

core.register_filter("tokens", Tokens, function(class) return class end)
