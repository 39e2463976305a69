package hook

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	maxInput = 8 << 20
	maxPath  = 4096 // bytes; a longer path is ignored
	maxID    = 200  // bytes of a session's and an act's id
	maxPaths = 100  // of one act
)

// event is the moment at which the hook runs.
type event string

const (
	before  event = "PreToolUse"
	after   event = "PostToolUse"        // the tool succeeded; with some agents it may have failed too
	failure event = "PostToolUseFailure" // the tool failed
)

// act is one tool call of the agent, as the rules see it.
type act struct {
	event   event
	session string
	id      string // empty if the agent sends none
	dir     string // the agent's folder

	reads, edits []string // absolute paths
	shell        bool
	commands     []command
	unread       bool    // the shell text has or may have more commands
	end          outcome // how it ended
	output       string
}

// input is the JSON that an agent sends to a hook. It has all field names in use.
type input struct {
	Session  string                     `json:"session_id"`
	Event    string                     `json:"hook_event_name"`
	Dir      string                     `json:"cwd"`
	Tool     string                     `json:"tool_name"`
	Input    map[string]json.RawMessage `json:"tool_input"`
	ID       string                     `json:"tool_use_id"`
	Response json.RawMessage            `json:"tool_response"`
	Output   json.RawMessage            `json:"tool_output"`
	ExitCode *int                       `json:"tool_exit_code"`
	Error    json.RawMessage            `json:"error"`
	Stopped  bool                       `json:"is_interrupt"`
}

// read parses an act. It returns nil for other events.
func read(stdin io.Reader, dir string) (*act, error) {
	data, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("stdin cannot be read: %w", err)
	case len(data) > maxInput:
		return nil, fmt.Errorf("stdin has more than %d MiB", maxInput>>20)
	}
	var in input
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, errors.New("stdin is not the JSON of a hook: run it as a hook of PreToolUse, PostToolUse and " +
			"PostToolUseFailure")
	}
	a := &act{event: event(in.Event), session: short(in.Session, maxID), id: short(in.ID, maxID), dir: dir}
	switch {
	case !slices.Contains([]event{before, after, failure}, a.event):
		if in.Event == "" {
			return nil, errors.New("hook_event_name is missing in the JSON on stdin")
		}
		return nil, nil //nolint:nilnil // other events need no action
	case in.Tool == "":
		return nil, errors.New("tool_name is missing in the JSON on stdin")
	case a.session == "":
		return nil, errors.New("session_id is missing in the JSON on stdin: without it no history can be kept")
	}
	if filepath.IsAbs(in.Dir) {
		a.dir = in.Dir
	}
	a.read(in)
	a.ended(in)
	return a, nil
}

// kind is the kind of a tool.
type kind int

const (
	other kind = iota
	edits
	reads
	runs
	either // edits, or reads if the command is view
)

// tools are the tools of coding agents, in lower case. Tools of MCP servers are matched by the last part of the name.
var tools = map[string]kind{
	"edit": edits, "multiedit": edits, "multi_edit": edits, "write": edits, "file_create": edits, "create_file": edits,
	"write_file": edits, "edit_file": edits,
	"replace": edits, "notebookedit": edits, "apply_patch": edits,
	"str_replace_editor": either, "str_replace_based_edit_tool": either, "text_editor": either,
	"read": reads, "view": reads, "cat": reads, "read_file": reads, "notebookread": reads,
	"bash": runs, "terminal": runs, "execute_command": runs, "shell": runs, "local_shell": runs, "run_shell_command": runs,
	"exec_command": runs,
}

// read sets the effects of an act from its input.
func (a *act) read(in input) {
	name := strings.ToLower(in.Tool)
	if n := strings.LastIndex(name, "__"); n >= 0 {
		name = name[n+2:]
	}
	does := tools[name]
	if does == either {
		if does = edits; text(in.Input["command"]) == "view" {
			does = reads
		}
	}
	switch does {
	case reads:
		a.reads = a.paths(in.Input)
	case edits:
		if a.edits = a.paths(in.Input); len(a.edits) == 0 {
			for _, field := range []string{"input", "patch", "command"} {
				a.edits = append(a.edits, a.patched(strings.Join(texts(in.Input[field]), "\n"))...)
			}
		}
	case runs:
		a.shell = true
		a.run(in.Input)
	}
}

// paths returns the paths in the input of a tool.
func (a *act) paths(in map[string]json.RawMessage) (found []string) {
	for _, field := range []string{"path", "file_path", "file", "filename", "notebook_path"} {
		if path := a.absolute(text(in[field])); path != "" {
			return []string{path}
		}
	}
	return nil
}

var patchFile = regexp.MustCompile(`(?m)^\*\*\* (?:Update File|Add File|Delete File|Move to): (.+?)\r?$`)

// patched returns the files in a patch of apply_patch.
func (a *act) patched(patch string) (found []string) {
	for _, m := range patchFile.FindAllStringSubmatch(patch, maxPaths) {
		if path := a.absolute(strings.TrimSpace(m[1])); path != "" && !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	return found
}

// run parses the command of a shell tool.
func (a *act) run(in map[string]json.RawMessage) {
	for _, field := range []string{"command", "cmd"} {
		words := texts(in[field])
		switch {
		case len(words) == 0:
			continue
		case json.Valid(in[field]) && in[field][0] == '[': // a list of words
			a.commands, a.unread = readShell(quoteWords(words))
		default:
			a.commands, a.unread = readShell(words[0])
		}
		break
	}
	if dir := text(in["workdir"]); filepath.IsAbs(dir) {
		a.dir = dir
	}
	for _, c := range a.commands {
		if c.words[0] == "apply_patch" {
			a.edits = append(a.edits, a.patched(c.stdin+"\n"+strings.Join(c.words[1:], "\n"))...)
		}
		for _, file := range c.shows() {
			if path := a.absolute(file); path != "" && len(a.reads) < maxPaths {
				a.reads = append(a.reads, path)
			}
		}
	}
	if string(in["run_in_background"]) == "true" {
		a.end = unknown
	}
}

var exitLine = regexp.MustCompile(`^(?:Exit code:? |Process exited with code )(\d+)`)

// ended sets how an act ended, and its output.
func (a *act) ended(in input) {
	if a.event == before {
		return
	}
	code := in.ExitCode
	response := in.Response
	if len(response) == 0 {
		response = in.Output
	}
	var fields struct {
		Stdout, Stderr, Output json.RawMessage
		Content                json.RawMessage
		Exit                   *int  `json:"exit_code"`
		ExitCode               *int  `json:"exitCode"`
		Code                   *int  `json:"code"`
		IsError                *bool `json:"is_error"`
		Success                *bool `json:"success"`
		Interrupted            bool  `json:"interrupted"`
		Background             any   `json:"backgroundTaskId"`
	}
	printed := texts(in.Error)
	if len(response) > 0 && response[0] == '{' {
		_ = json.Unmarshal(response, &fields) // fields of other types are ignored
		for _, c := range []*int{fields.Exit, fields.ExitCode, fields.Code} {
			if code == nil {
				code = c
			}
		}
		for _, part := range []json.RawMessage{fields.Stdout, fields.Stderr, fields.Output, fields.Content} {
			printed = append(printed, texts(part)...)
		}
	} else {
		printed = append(printed, texts(response)...)
	}
	a.output = strings.Join(printed, "\n")
	for _, p := range printed {
		if found := exitLine.FindStringSubmatch(p); found != nil && code == nil && a.shell {
			if n, err := strconv.Atoi(found[1]); err == nil {
				code = &n
			}
		}
	}
	switch {
	case a.end == unknown || in.Stopped || fields.Interrupted || fields.Background != nil || code != nil &&
		(*code == 126 || *code == 127):
		// nothing ran
		a.end = unknown
	case a.event == failure || code != nil && *code != 0 || fields.IsError != nil && *fields.IsError ||
		fields.Success != nil && !*fields.Success:
		a.end = failed
	default:
		a.end = passed
	}
}

// absolute returns a path in the form that facts use: absolute, without . and .., and with symbolic links resolved as
// far as the files exist.
func (a *act) absolute(path string) string {
	if path == "" || len(path) > maxPath || strings.ContainsRune(path, 0) {
		return ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(a.dir, path)
	}
	return resolved(filepath.Clean(path))
}

// resolved returns the path without symbolic links, as far as it exists, cut to maxPath: no longer path can exist.
func resolved(path string) string {
	if len(path) > maxPath {
		return short(path, maxPath)
	}
	for there, rest := path, ""; ; {
		if real, err := filepath.EvalSymlinks(there); err == nil {
			return short(filepath.Join(real, rest), maxPath)
		}
		up := filepath.Dir(there)
		if up == there {
			return short(path, maxPath)
		}
		there, rest = up, filepath.Join(filepath.Base(there), rest)
	}
}

// text returns a JSON string, or "" for any other value.
func text(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// texts returns the strings in a JSON value: a string, a list of strings, or a list of objects with a text.
func texts(raw json.RawMessage) (all []string) {
	if s := text(raw); s != "" {
		return []string{s}
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for _, item := range list {
		var object struct{ Text string }
		if s := text(item); s != "" {
			all = append(all, s)
		} else if json.Unmarshal(item, &object) == nil && object.Text != "" {
			all = append(all, object.Text)
		}
	}
	return all
}
