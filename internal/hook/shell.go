package hook

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// command is one simple command of a shell text, as the shell would run it: without quotes, assignments, redirections,
// and commands such as env that only run another.
type command struct {
	words []string
	dir   string // its folder, absolute or relative to that of the text
	// alone means that the end of the text is the end of this command, unless a command before or after it failed.
	alone  bool
	writes []string // the files that its output is written to, relative to the folder of the text
	stdin  string   // a here-document
	script string   // stdin as a shell that runs it gets it; a * replaces each value
}

const (
	maxShellText  = 64 << 10 // the parser is recursive: brackets up to this size take 256 MiB of stack
	maxShellDepth = 12       // of texts run by commands such as sh -c, and of substitutions
	maxCommands   = 500
	maxStatements = 2000 // statements to follow, including their redirections
)

// parseShell returns the commands of a text that [readShell] can read.
func parseShell(text string) []command {
	commands, _ := readShell(text)
	return commands
}

// readShell returns the commands of a text, including nested ones. It stops at the first line that it cannot parse.
// unread reports whether some of the text was not read, and may contain any command.
func readShell(text string) (commands []command, unread bool) {
	r := shellReader{all: []command{}}
	r.text(text, "", 0, true)
	if r.unread {
		for i := range r.all { // the unread part may have caused the end
			r.all[i].alone = false
		}
	}
	return r.all, r.unread
}

// shellReader collects commands.
type shellReader struct {
	all      []command
	followed int // statements and redirections in all texts
	unread   bool
}

func (r *shellReader) text(text, dir string, depth int, alone bool) {
	if depth > maxShellDepth {
		r.unread = true
		return
	}
	if len(text) > maxShellText {
		r.unread, text = true, text[:maxShellText]
	}
	stmts, whole := statements(text)
	if !whole {
		// Bash runs a here-document that contains an error, such as ${{ x }}, and continues after it. A quoted one has no
		// errors.
		if quoted := quoteHeredocs(text); quoted != text {
			if again, ok := statements(quoted); ok || len(again) > len(stmts) {
				text, stmts = quoted, again
				whole = ok && !substitutes(again)
			}
		}
	}
	r.unread = r.unread || !whole
	shellText{r, text, depth}.list(stmts, dir, alone)
}

// follow reports whether another statement or redirection may be followed.
func (r *shellReader) follow() bool {
	if r.followed == maxStatements {
		r.unread = true
		return false
	}
	r.followed++
	return true
}

// statements parses as much of a text as possible. The parser panics on a few invalid texts.
func statements(text string) (stmts []*syntax.Stmt, whole bool) {
	defer func() {
		if recover() != nil {
			whole = false
		}
	}()
	whole = true
	for stmt, err := range syntax.NewParser(syntax.RecoverErrors(10)).StmtsSeq(strings.NewReader(text)) {
		if err == nil { // an error is the last value: the parser panics if the loop ends at it
			stmts = append(stmts, stmt)
		} else {
			whole = false
		}
	}
	return stmts, whole
}

var heredoc = regexp.MustCompile(`(^|[^<])<<(-?)[ \t]*([A-Za-z_][A-Za-z0-9_]*)`)

// quoteHeredocs quotes the words that end here-documents, so that the bodies are plain text.
func quoteHeredocs(text string) string { return heredoc.ReplaceAllString(text, "${1}<<${2}'${3}'") }

// substitutes reports whether a here-document of the statements could run commands if its word were not quoted.
func substitutes(stmts []*syntax.Stmt) (found bool) {
	for _, stmt := range stmts {
		syntax.Walk(stmt, func(n syntax.Node) bool {
			if r, ok := n.(*syntax.Redirect); ok && r.Hdoc != nil {
				for _, part := range r.Hdoc.Parts {
					lit, ok := part.(*syntax.Lit)
					found = found || ok && (strings.Contains(lit.Value, "$(") || strings.Contains(lit.Value, "`"))
				}
			}
			return true
		})
	}
	return found
}

// shellText is one text whose statements the reader follows.
type shellText struct {
	*shellReader
	source string
	depth  int
}

// list follows statements and returns the folder after them. Only the end of the last statement can be the end of the
// list.
func (t shellText) list(stmts []*syntax.Stmt, dir string, alone bool) string {
	for i, stmt := range stmts {
		dir = t.stmt(stmt, dir, alone && i == len(stmts)-1)
	}
	return dir
}

func (t shellText) stmt(stmt *syntax.Stmt, dir string, alone bool) string {
	if !t.follow() {
		return dir
	}
	now := command{dir: dir, alone: alone && !stmt.Background && !stmt.Negated}
	for _, redirect := range stmt.Redirs {
		t.redirect(redirect, &now)
	}
	first := len(t.all)
	switch cmd := stmt.Cmd.(type) {
	case *syntax.CallExpr:
		return t.call(cmd, now)
	case *syntax.BinaryCmd:
		dir = t.stmt(cmd.X, dir, now.alone && cmd.Op == syntax.AndStmt)
		dir = t.stmt(cmd.Y, dir, now.alone)
	case *syntax.Block:
		dir = t.list(cmd.Stmts, dir, now.alone)
	case *syntax.Subshell: // cd has no effect outside
		t.list(cmd.Stmts, dir, now.alone)
	case *syntax.TimeClause:
		if cmd.Stmt != nil {
			dir = t.stmt(cmd.Stmt, dir, now.alone)
		}
	default: // a condition, loop, function or declaration: its end does not show how its commands ended
		dir = t.inside(stmt.Cmd, dir)
	}
	if len(t.all) == first && len(now.writes) > 0 { // a redirection without a command empties its file
		now.words = []string{":"}
		t.add(now)
	} else if len(t.all) > first {
		t.all[first].writes = append(t.all[first].writes, now.writes...)
	}
	return dir
}

// inside follows the statements nested in a node.
func (t shellText) inside(node syntax.Node, dir string) string {
	if node == nil {
		return dir
	}
	syntax.Walk(node, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			dir = t.stmt(n, dir, false)
			return false
		case *syntax.CmdSubst:
			t.substituted(n.Stmts, dir)
			return false
		case *syntax.ProcSubst:
			t.substituted(n.Stmts, dir)
			return false
		}
		return true
	})
	return dir
}

// substituted follows the statements of a substitution.
func (t shellText) substituted(stmts []*syntax.Stmt, dir string) {
	if t.depth++; t.depth > maxShellDepth {
		t.unread = true
		return
	}
	t.list(stmts, dir, false)
}

func (t shellText) redirect(r *syntax.Redirect, now *command) {
	if !t.follow() {
		return
	}
	if r.Hdoc != nil {
		t.inside(r.Hdoc, now.dir)
		for _, part := range r.Hdoc.Parts {
			if lit, ok := part.(*syntax.Lit); ok {
				now.stdin += lit.Value
				now.script += lit.Value
			} else {
				now.script += value(part)
				to := min(part.End().Offset(), uint(len(t.source))) // in an invalid text both offsets may be anywhere
				now.stdin += t.source[min(part.Pos().Offset(), to):to]
			}
		}
		return
	}
	if r.Word == nil {
		return
	}
	t.inside(r.Word, now.dir)
	target := wordText(r.Word)
	if r.Op == syntax.WordHdoc {
		now.stdin += target
		now.script += target
		return
	}
	duplicates := r.Op == syntax.DplOut && (digits(target) || target == "-")
	if strings.Contains(r.Op.String(), ">") && !duplicates && target != "/dev/null" && target != "" {
		now.writes = append(now.writes, within(now.dir, target))
	}
}

// call adds a command, or the commands of the text that it runs, and returns the folder after it.
func (t shellText) call(cmd *syntax.CallExpr, now command) string {
	for _, assign := range cmd.Assigns {
		t.inside(assign, now.dir)
	}
	for _, word := range cmd.Args {
		t.inside(word, now.dir)
		if text := wordText(word); text != "" || len(word.Parts) > 0 && !isProcess(word) {
			now.words = append(now.words, text)
		}
	}
	typed := len(now.words) > 0
	var unread bool
	now.words, unread = withoutPrefixes(now.words)
	t.unread = t.unread || unread
	if len(now.words) == 0 && typed { // for example sudo -s, which runs a shell
		t.text(now.script, now.dir, t.depth+1, now.alone)
	}
	if len(now.words) == 0 {
		if len(now.writes) > 0 {
			now.words = []string{":"}
			t.add(now)
		}
		return now.dir
	}
	name, operands := now.words[0], now.words[1:]
	if inner, ok := script(now.words); ok {
		first := len(t.all)
		t.text(inner, now.dir, t.depth+1, now.alone)
		if len(t.all) > first {
			t.all[first].writes = append(t.all[first].writes, now.writes...)
		}
		return now.dir
	}
	if name == "cd" || name == "pushd" {
		if len(operands) > 0 && !strings.HasPrefix(operands[len(operands)-1], "-") {
			return within(now.dir, operands[len(operands)-1])
		}
		return now.dir
	}
	t.add(now)
	t.unread = t.unread || now.unknown()
	if slices.Contains(shells, name) && readsStdin(operands) || name == "su" || name == "runuser" {
		t.text(now.script, now.dir, t.depth+1, now.alone)
	}
	return now.dir
}

func (r *shellReader) add(c command) {
	if len(r.all) == maxCommands {
		r.unread = true
		return
	}
	r.all = append(r.all, c)
}

func isProcess(word *syntax.Word) bool {
	_, ok := word.Parts[0].(*syntax.ProcSubst)
	return ok
}

// wordText returns a word without quotes. A * replaces an unknown value.
func wordText(word *syntax.Word) string {
	var b strings.Builder
	for _, part := range word.Parts {
		writePart(&b, part, "")
	}
	return b.String()
}

// value returns a part of a here-document that the surrounding shell replaces. The commands of a substitution are
// followed there, and not again in the text.
func value(part syntax.WordPart) string {
	var b strings.Builder
	writePart(&b, part, "")
	return b.String()
}

// writePart writes a part of a word. In double quotes a backslash escapes only some characters.
func writePart(b *strings.Builder, part syntax.WordPart, escapable string) {
	switch part := part.(type) {
	case *syntax.Lit:
		unescape(b, part.Value, escapable)
	case *syntax.SglQuoted:
		if part.Dollar {
			writeANSI(b, part.Value)
		} else {
			b.WriteString(part.Value)
		}
	case *syntax.DblQuoted:
		for _, inner := range part.Parts {
			writePart(b, inner, "\\\"$`\n")
		}
	case *syntax.ParamExp:
		if part.Short && part.Param != nil {
			b.WriteString("$" + part.Param.Value)
		} else {
			b.WriteByte('*')
		}
	case *syntax.ProcSubst:
	default:
		b.WriteByte('*')
	}
}

// ansi maps letters to the characters that they mean after a backslash in $'…'.
var ansi = map[byte]byte{'a': 7, 'b': 8, 'e': 27, 'E': 27, 'f': 12, 'n': 10, 'r': 13, 't': 9, 'v': 11}

// writeANSI writes the content of $'…'.
func writeANSI(b *strings.Builder, text string) {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		i++
		base, most, from := 16, 0, i+1
		switch text[i] {
		case 'x':
			most = 2
		case 'u':
			most = 4
		case 'U':
			most = 8
		case '0', '1', '2', '3', '4', '5', '6', '7':
			base, most, from = 8, 3, i
		}
		to := from
		for to < len(text) && to-from < most {
			if _, err := strconv.ParseUint(text[to:to+1], base, 8); err != nil {
				break
			}
			to++
		}
		if code, err := strconv.ParseUint(text[from:to], base, 32); err == nil {
			if most > 3 {
				b.WriteRune(rune(code)) //nolint:gosec // any other number is written as U+FFFD
			} else {
				b.WriteByte(byte(code)) //nolint:gosec // as Bash does
			}
			i = to - 1
		} else if control, ok := ansi[text[i]]; ok {
			b.WriteByte(control)
		} else {
			b.WriteByte(text[i])
		}
	}
}

// unescape removes the backslashes of a text, and line breaks after a backslash.
func unescape(b *strings.Builder, text, escapable string) {
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) && (escapable == "" || strings.IndexByte(escapable, text[i+1]) >= 0) {
			if i++; text[i] == '\n' {
				continue
			}
		}
		b.WriteByte(text[i])
	}
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// within returns a path relative to the folder of the text.
func within(dir, next string) string {
	if next == "" || filepath.IsAbs(next) || dir == "" {
		return next
	}
	return filepath.Join(dir, next)
}

var shells = []string{"sh", "bash", "zsh", "dash", "ksh"}

// script returns the text that a command such as sh -c or eval runs.
func script(words []string) (text string, ok bool) {
	switch {
	case words[0] == "eval":
		return strings.Join(behindOptions(words[1:], nil), " "), true
	case words[0] == "su" || words[0] == "runuser":
		for i, word := range words {
			if (word == "-c" || word == "--command") && i+1 < len(words) {
				return words[i+1], true
			}
		}
	case slices.Contains(shells, words[0]):
		if flags, operands := shellOptions(words[1:]); strings.Contains(flags, "c") && len(operands) > 0 {
			return operands[0], true
		}
	}
	return "", false
}

// shellOptions splits the words of a shell into the letters of its options and the words after them.
func shellOptions(words []string) (flags string, operands []string) {
	for len(words) > 0 {
		word := words[0]
		switch {
		case word == "--" || word == "-":
			return flags, words[1:]
		case word == "--rcfile" || word == "--init-file":
			words = words[1:]
		case strings.HasPrefix(word, "--"):
		case len(word) > 1 && (word[0] == '-' || word[0] == '+'):
			if word[0] == '-' {
				flags += word[1:]
			}
			if last := word[len(word)-1]; last == 'o' || last == 'O' { // for example -eo pipefail
				words = words[min(1, len(words)-1):]
			}
		default:
			return flags, words
		}
		words = words[min(1, len(words)):]
	}
	return flags, nil
}

// readsStdin reports whether a shell with these words runs its stdin.
func readsStdin(words []string) bool {
	flags, operands := shellOptions(words)
	return len(operands) == 0 || strings.Contains(flags, "s")
}

var envValues = []string{"-u", "--unset", "-C", "--chdir"}

// runners are commands that run the command after their options. values are the options that take a value. operands is
// the number of operands before the command.
var runners = map[string]struct {
	values   []string
	operands int
}{
	"env": {values: envValues},
	"sudo": {values: []string{"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T", "-r", "-t", "-U", "--user", "--group",
		"--host", "--prompt", "--close-from", "--chdir", "--chroot", "--command-timeout", "--role", "--type",
		"--other-user"}},
	"doas": {values: []string{"-u", "-C"}}, "nice": {values: []string{"-n", "--adjustment"}},
	"ionice": {values: []string{"-c", "-n", "-p", "--class", "--classdata"}},
	"flock":  {values: []string{"-w", "-E", "--timeout", "--conflict-exit-code"}, operands: 1},
	"chrt":   {operands: 1}, "taskset": {operands: 1}, "strace": {values: []string{"-o", "-e", "-p", "-s", "-u"}},
	"timeout": {values: []string{"-s", "--signal", "-k", "--kill-after"}, operands: 1},
	"stdbuf":  {values: []string{"-i", "-o", "-e"}},
	"xargs": {values: []string{"-I", "-n", "-P", "-d", "-L", "-s", "-a", "-E", "--delimiter", "--arg-file",
		"--process-slot-var"}},
	"nohup": {}, "command": {}, "exec": {values: []string{"-a"}}, "builtin": {}, "setsid": {},
	"time": {values: []string{"-o", "-f"}},
	"npx":  {values: []string{"-p", "--package"}}, "bunx": {},
}

// throughs are runners that consist of two words.
var throughs = []string{"uv run", "poetry run", "pipenv run", "hatch run", "rye run", "pdm run", "pnpm exec",
	"pnpm dlx", "npm exec", "yarn exec", "yarn dlx", "bundle exec"}

// throughValues are the options of throughs that take a value.
var throughValues = []string{"--with", "--with-editable", "--with-requirements", "--extra", "--group", "--python", "-p",
	"--package", "--project", "--directory", "-C", "--env-file", "--index", "-c", "--call", "-w", "--workspace", "-e"}

// coverageValues are the options of coverage run that take a value.
var coverageValues = []string{"--source", "--include", "--omit", "--rcfile", "--data-file", "--context",
	"--concurrency"}

// withoutPrefixes removes assignments and the commands that run another command. It shortens the command's name to its
// base name. unread reports whether some words were not read.
func withoutPrefixes(words []string) (rest []string, unread bool) {
	splits := 0
	for len(words) > 0 {
		base := strings.TrimSuffix(filepath.Base(words[0]), ".exe")
		runner, runs := runners[base]
		switch {
		case assignment(words[0]):
			words = words[1:]
		case base == "command" && asks(words[1:]):
			return append([]string{base}, words[1:]...), false
		case base == "env" && splits == maxShellDepth:
			return append([]string{base}, words[1:]...), true
		case base == "env" && splits < maxShellDepth: // each split copies all words
			splits++
			words = behindOptions(splitString(words[1:]), runner.values)
		case runs:
			words = behindOptions(words[1:], runner.values)
			words = words[min(runner.operands, len(words)):]
			if runner.operands > 0 && len(words) > 0 && (words[0] == "-c" || words[0] == "--command") {
				return append([]string{"sh", "-c"}, words[1:]...), false // same as flock
			}
			if runner.operands > 0 && len(words) > 0 && words[0] == "--" {
				words = words[1:]
			}
		case len(words) > 1 && slices.Contains(throughs, base+" "+words[1]):
			words = behindOptions(words[2:], throughValues)
		case base == "coverage" && len(words) > 1 && words[1] == "run":
			options := behindOptions(words[2:], coverageValues, "-m")
			words = append([]string{"python"}, options...)
		case words[0] == "":
			return nil, false
		default:
			return append([]string{base}, words[1:]...), false
		}
	}
	return nil, false
}

// asks reports whether command only describes its operands, with -v or -V.
func asks(words []string) bool {
	for _, word := range words {
		if word == "--" || !strings.HasPrefix(word, "-") {
			break
		}
		if strings.ContainsAny(word, "vV") {
			return true
		}
	}
	return false
}

// splitString replaces the option -S of env with the words of its value.
func splitString(words []string) []string {
	for i := 0; i < len(words); i++ {
		word := words[i]
		value, long := strings.CutPrefix(word, "--split-string")
		letters, after, short := strings.Cut(word, "S")
		rest := words[i+1:]
		switch {
		case word == "--" || !strings.HasPrefix(word, "-"):
			return words
		case long:
			value = strings.TrimPrefix(value, "=")
		case short && !strings.HasPrefix(word, "--") && strings.Trim(letters, "-iv0") == "":
			value = after
		case takesNext(word, envValues):
			i++
			continue
		default:
			continue
		}
		if value == "" && len(rest) > 0 {
			value, rest = rest[0], rest[1:]
		}
		return slices.Concat(words[:i], wordsOf(value), rest)
	}
	return words
}

// wordsOf returns the words of a text that is a single command.
func wordsOf(text string) (words []string) {
	stmts, _ := statements(text[:min(len(text), maxShellText)])
	if len(stmts) == 0 {
		return nil
	}
	if call, ok := stmts[0].Cmd.(*syntax.CallExpr); ok {
		for _, assign := range call.Assigns {
			if assign.Name != nil {
				words = append(words, assign.Name.Value+"=")
			}
		}
		for _, word := range call.Args {
			words = append(words, wordText(word))
		}
	}
	return words
}

// behindOptions removes options, up to one in until, each with its value if it takes one. A value may be in the same
// word as its option, and short options may share a word. A number after a long option is its value.
func behindOptions(words, values []string, until ...string) []string {
	for len(words) > 0 && strings.HasPrefix(words[0], "-") && !slices.Contains(until, words[0]) {
		n := 1
		if takesNext(words[0], values) || strings.HasPrefix(words[0], "--") && len(words) > 1 && digits(words[1]) {
			n = 2
		}
		if words[0] == "--" {
			return words[1:]
		}
		words = words[min(n, len(words)):]
	}
	return words
}

// takesNext reports whether the value of an option is the next word.
func takesNext(option string, values []string) bool {
	if slices.Contains(values, option) || strings.HasPrefix(option, "--") {
		return slices.Contains(values, option)
	}
	for i, letter := range option[1:] {
		if slices.Contains(values, "-"+string(letter)) {
			return i+2 == len(option)
		}
	}
	return false
}

// assignment reports whether a word sets a variable.
func assignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	name = strings.TrimSuffix(name, "+")
	return ok && name != "" &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == "" && !digits(name[:1])
}

var gitValues = []string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env",
	"--exec-path", "--attr-source"}

// unknown reports whether the effect of a command depends on an unknown value.
func (c command) unknown() bool {
	word := c.words[0]
	if word == "git" {
		if words := behindOptions(c.words[1:], gitValues); len(words) > 0 {
			word = words[0]
		}
	}
	return strings.ContainsAny(word, "$*")
}

// commits reports whether a command creates or names a commit.
func (c command) commits() bool {
	switch c.words[0] {
	case "git":
		words := behindOptions(c.words[1:], gitValues)
		return len(words) > 0 && words[0] == "commit"
	case "jj":
		words := behindOptions(c.words[1:], []string{"-R", "--repository", "--at-operation", "--at-op", "--color", "--config",
			"--config-toml", "--config-file"})
		return len(words) > 0 && slices.Contains([]string{"commit", "ci", "describe", "desc", "new"}, words[0])
	}
	return false
}

// looking are commands that change nothing. Commands with two words are listed if the first word has other commands
// that do.
var looking = []string{"ls", "cat", "head", "tail", "less", "more", "nl", "bat", "grep", "egrep", "fgrep", "rg", "ag",
	"find", "fd", "wc", "pwd", "echo", "printf",
	"which", "whereis", "type", "file", "stat", "du", "df", "tree", "date", "printenv", "whoami", "id", "uname",
	"hostname", "ps", "sort", "uniq", "cut", "tr", "awk",
	"jq", "diff", "cmp", "true", "false", "test", "[", "[[", "sleep", "basename", "dirname", "realpath", "readlink", "xxd",
	"od", "sha256sum", "md5sum", "set", "export",
	"exit", "popd", "for", "case", "esac", "read", "wait", "git status", "git diff", "git log", "git show", "git blame",
	"git grep", "git branch", "git ls-files", "git rev-parse", "git remote",
	"git add", "git commit", "git push", "git fetch", "go vet", "go list", "go doc", "go env", "go version", "go build",
	"cargo check", "cargo build", "cargo clippy"}

// changes reports whether a command may have changed a file that tests depend on.
func (c command) changes() bool {
	if len(c.writes) > 0 || slices.ContainsFunc(c.words,
		func(w string) bool { return w == "-delete" || w == "-exec" || w == "-execdir" }) {
		return true
	}
	if slices.Contains(looking, c.words[0]) {
		return false
	}
	if c.words[0] == "sed" {
		return slices.ContainsFunc(c.words, func(w string) bool {
			return strings.HasPrefix(w, "-i") || strings.HasPrefix(w, "--in-place")
		})
	}
	return len(c.words) < 2 || !slices.Contains(looking, c.words[0]+" "+c.words[1])
}

// shows returns the files whose contents a command prints.
func (c command) shows() (files []string) {
	switch c.words[0] {
	case "cat", "head", "tail", "less", "more", "nl", "bat":
	case "sed":
		if c.changes() || len(c.words) < 3 {
			return nil
		}
	default:
		return nil
	}
	words := c.words[1:]
	if c.words[0] == "sed" { // the script of sed comes first
		words = behindOptions(words, []string{"-e", "-f"})
		words = words[min(1, len(words)):]
	}
	for i, word := range words {
		counted := i > 0 && slices.Contains([]string{"-n", "-c"}, words[i-1]) && digits(strings.TrimLeft(word, "+-"))
		if word != "" && word[0] != '-' && !counted {
			files = append(files, within(c.dir, word))
		}
	}
	return files
}
