-- Written by vllm-spark; the same text on every Spark. route.cfg loads it for the route: which model a request names.
-- haproxy.cfg loads it for the log of the edge: which model an answer names, how many tokens it says that it has
-- (`usage`), and how many events and bytes of text a stream has. Answers pass at once and unchanged. No answer is kept,
-- and no text of it reaches the log.

-- How much of a text Lua reads at once, and after how many seconds of it HAProxy's other work has its turn.
local PIECE_BYTES, TURN_S = 32768, 0.02
-- The bodies of a person wait for this many times what reading them has taken, beyond a first debt: each thread has
-- most of its time for others, however many bodies come.
local WAITS, DEBT_S = 4, 0.2
-- Each string takes a step of Lua. 16 MiB without more strings are read in a few turns, and no request has so many. An
-- answer comes in parts, and has eight strings for a token of the prompt or of itself if the client asks for logprobs.
local MOST_STRINGS, MOST_STRINGS_OF_ANSWER = 250000, 2000000
-- The longest model of a request, as it is spelt.
local SPELT_BYTES = 1024
-- It stands for an escaped quote or backslash, because no name has it.
local HIDDEN = "\xff\xff"
local BRACKETS = { "{", "}", "[", "]" }
local ESCAPED = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
-- Events of a stream of /v1/responses and of /v1/messages have their model and `usage` in an object of these names.
local OBJECTS_IN_EVENT = { response = true, message = true }
-- The largest `usage`.
local USAGE_BYTES = 4096

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
-- many keys of the object are `model`, how many strings there are, and the text behind the last key `usage`. `objects`:
-- names of objects in it whose model and `usage` count too. What Python's json refuses may have any model.
local function reader(objects)
  local depth, before, held, keys, count, strings = 0, "", "", {}, 0, 0
  local in_string, is_key, spelt, model, usage = false, false, nil, nil, nil

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

  -- Return the key that has ended.
  local function string_has_ended()
    if not is_key then
      model = #spelt <= SPELT_BYTES and decoded(spelt) or spelt
    else
      keys[depth] = #spelt <= SPELT_BYTES and decoded(spelt)
      if depth == 1 and keys[1] == "model" then count = count + 1 end
      return keys[depth]
    end
  end

  return function(piece)
    local text = held .. piece
    held = ""
    if usage and #usage < USAGE_BYTES then usage = usage .. text:sub(1, USAGE_BYTES - #usage) end
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
        if at and string_has_ended() == "usage" then usage = text:sub(at + 1, at + USAGE_BYTES) end
      end
      if not at then break end
      if in_string then strings = strings + 1 end
      in_string, from = not in_string, at + 1
    end
    return model, count, strings, usage
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

-- Variable of the log -> its names in `usage`, which are added: those of the cache stand beside `input_tokens` in
-- /v1/messages, and elsewhere a number includes them.
local FIGURES = {
  ["txn.in_tokens"] = { "input_tokens", "prompt_tokens", "cache_read_input_tokens", "cache_creation_input_tokens" },
  ["txn.out_tokens"] = { "output_tokens", "completion_tokens" },
}
-- What a model writes has these names in an event.
local TEXTS = {
  '"content"', '"text"', '"delta"', '"reasoning"', '"reasoning_content"', '"thinking"', '"arguments"', '"partial_json"',
}
-- What of a model may stand in the log.
local NAME_BYTES, NAME = 128, "^%w[%w._/:@+-]*$"

local Tokens = { id = "edge-tokens", flags = filter.FLT_CFG_FL_HTX }
Tokens.__index = Tokens

function Tokens:new()
  return setmetatable({ figures = {}, events = 0, text_bytes = 0, held = "" }, self)
end

local function begin(self, message)
  local headers = message:get_headers()
  -- A compressed answer says nothing here.
  if not message:is_resp() or headers["content-encoding"] then return end
  local kind = headers["content-type"]
  self.streams = kind ~= nil and kind[0]:find("^text/event%-stream") ~= nil
  filter.register_data_filter(self, message.channel)
end

-- Add the figures of a `usage` to those of the log. `text` is what stands behind its key, perhaps not all of it yet.
local function read_usage(self, text)
  local object = text:match("^%s*:%s*(%b{})")
  if not object then return end
  local plain = object:sub(2, -2):gsub("%b{}", "")
  for variable, names in pairs(FIGURES) do
    local sum
    for _, name in ipairs(names) do
      local figure = plain:match('"' .. name .. '"%s*:%s*(%d+)')
      if figure then sum = (sum or 0) + tonumber(figure) end
    end
    -- The first event of /v1/messages has no token of the answer yet.
    if sum and (sum > 0 or not self.streams) then self.figures[variable] = sum end
  end
end

-- Read a part of an answer or of an event: its model, and the figures of its `usage`.
local function read_part(self, part)
  if self.is_long then return end
  self.read = self.read or reader(self.streams and OBJECTS_IN_EVENT or {})
  local model, _, strings, usage = self.read(part)
  if not self.has_begun then self.model = self.model or model end
  self.is_long = strings > MOST_STRINGS_OF_ANSWER
  if usage and not self.is_long then read_usage(self, usage) end
end

-- Count the bytes that the model has written in a part of an event.
local function count_text(self, part)
  if part:find("\\", 1, true) then part = part:gsub('\\[\\"]', HIDDEN) end
  for _, name in ipairs(TEXTS) do
    local _, at = part:find(name, 1, true)
    while at do
      self.text_bytes = self.text_bytes + #(part:match('^%s*:%s*"([^"]*)', at + 1) or "")
      _, at = part:find(name, at, true)
    end
  end
end

-- Read a part of an event, up to its end or to that of what has come.
local function read_event(self, part, is_end)
  count_text(self, part)
  -- Of a whole event it is known that there is nothing to read in it.
  if self.read or not is_end or not self.has_begun or part:find('"usage"', 1, true) then read_part(self, part) end
  if is_end then
    self.events, self.read = self.events + 1, nil
    -- A comment comes before the first event.
    self.has_begun = self.has_begun or part:sub(1, 1) ~= ":"
  end
end

local function keep(self, message)
  local text = self.held .. message:body(0, message:input())
  if not self.streams then return read_part(self, text) end
  local from, at = 1, text:find("\n\n", 1, true)
  while at do
    read_event(self, text:sub(from, at - 1), true)
    from = at + 2
    at = text:find("\n\n", from, true)
  end
  -- The rest of the end of an event may come next.
  self.held = text:sub(-1) == "\n" and from <= #text and "\n" or ""
  local rest = text:sub(from, -1 - #self.held)
  if rest ~= "" then read_event(self, rest, false) end
end

local function say(self, transaction)
  if self.model and #self.model <= NAME_BYTES and self.model:find(NAME) then
    transaction:set_var("txn.model", self.model)
  end
  if self.streams then
    transaction:set_var("txn.events", self.events)
    transaction:set_var("txn.text_bytes", self.text_bytes)
  end
  for variable, figure in pairs(self.figures) do transaction:set_var(variable, figure) end
end

-- HAProxy cuts an answer whose filter fails. A figure that is missing is only a dash in the log.
function Tokens:http_headers(_, message)
  pcall(begin, self, message)
end

function Tokens:http_payload(_, message)
  pcall(keep, self, message)
end

-- Also after an answer that was cut, or whose client has gone.
function Tokens:end_analyze(transaction, channel)
  if channel:is_resp() then pcall(say, self, transaction) end
end

core.register_filter("tokens", Tokens, function(class) return class end)

-- How often the edge says how much it has refused, and how much it does not mention: most of it has no line.
local TELLS_S, UNTOLD = 60, 600

local function tell_refused()
  local before
  -- One thread of the first stage tells it.
  while core.thread == 1 and core.backends.edge_known do
    local now = core.frontends.edge_api:get_stats()
    if before then
      local idle = (now.conn_tot - before.conn_tot) - (now.req_tot - before.req_tot)
      local refused = now.hrsp_4xx - before.hrsp_4xx + math.max(0, idle)
      local text = "%d requests and connections within %d s were refused or came to nothing: most have no line"
      if refused > UNTOLD then core.log(core.warning, text:format(refused, TELLS_S)) end
    end
    before = now
    core.sleep(TELLS_S)
  end
end

core.register_task(tell_refused)
