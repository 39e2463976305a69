package hook

import (
	"path/filepath"
	"slices"
	"strings"
)

// command is one simple command of a shell text, after the shell has done its part: without quotes, assignments, redirections and
// the commands that only run another, such as env.
type command struct {
	words []string
	dir   string // where it runs; relative to where the text does, or absolute
	// alone: how the text ends is how the command ends, unless a command before or after it failed.
	alone  bool
	writes []string // the files that its output goes into, as seen from where the text runs
	stdin  string   // a here-document
}

const (
	maxShellText  = 256 << 10
	maxShellDepth = 12 // of commands inside of commands
	maxCommands   = 500
)

// parseShell returns the commands of a text, those inside of others too. It reads as a linter does: a text that it cannot read has fewer of them.
func parseShell(text string) []command {
	all := []command{}
	readShell(text, "", 0, &all)
	return all
}

func readShell(text, dir string, depth int, all *[]command) {
	if depth > maxShellDepth {
		return
	}
	text = strings.TrimRight(text[:min(len(text), maxShellText)], " \t\r\n;")
	s := &shell{text: text, depth: depth, dir: dir, all: all}
	for s.pos < len(s.text) {
		s.list(0)
	}
}

// shell reads a text from pos on.
type shell struct {
	text  string
	pos   int
	depth int
	dir   string
	all   *[]command

	closing byte    // what ends the list that is being read; 0 for the end of the text
	first   int     // the index in all of the first command whose end is still the end of the text
	now     command // the command that is being read
	docs    []hereDoc
	joined  bool // && leads to it
}

// hereDoc is one whose text begins on the next line.
type hereDoc struct {
	end  string
	dash bool
	of   int // the index in all of its command, once that has ended
}

// list reads commands up to a closing sign, or the end.
func (s *shell) list(closing byte) {
	s.closing, s.first = closing, len(*s.all)
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		switch {
		case closing != 0 && c == closing:
			s.end()
			s.pos++
			return
		case c == ' ' || c == '\t' || c == '\r':
			s.pos++
		case c == '\n':
			goesOn := s.joined && len(s.now.words) == 0
			s.end()
			s.pos++
			s.readDocs()
			if !goesOn {
				s.masked()
			}
		case c == '#':
			s.skipLine()
		case c == ';' || c == '&' || c == '|':
			s.operator()
		case c == '(':
			s.pos++
			s.group(')')
		case c == ')':
			s.end()
			s.pos++
		case c == '<' || c == '>':
			s.redirect()
		default:
			word, quoted := s.word()
			if word == "" && !quoted {
				continue // a line that goes on
			}
			if s.pos < len(s.text) && (s.text[s.pos] == '<' || s.text[s.pos] == '>') && !quoted && digits(word) {
				continue // the number of a redirection
			}
			s.now.words = append(s.now.words, word)
		}
	}
	s.end()
}

// group reads a list of its own: what it does to the directory ends with it.
func (s *shell) group(closing byte) {
	inner := &shell{text: s.text, pos: s.pos, depth: s.depth + 1, dir: s.dir, all: s.all}
	if s.depth > maxShellDepth {
		s.pos = len(s.text)
		return
	}
	inner.list(closing)
	s.pos = inner.pos
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func (s *shell) skipLine() {
	if n := strings.IndexByte(s.text[s.pos:], '\n'); n >= 0 {
		s.pos += n
	} else {
		s.pos = len(s.text)
	}
}

// operator ends a command. After && its end still counts; after the others another's does.
func (s *shell) operator() {
	c := s.text[s.pos]
	double := s.pos+1 < len(s.text) && s.text[s.pos+1] == c
	if c == '&' && s.pos+1 < len(s.text) && s.text[s.pos+1] == '>' { // &> is a redirection
		s.pos++
		s.redirect()
		return
	}
	s.end()
	s.pos++
	if double || c == '|' && s.pos < len(s.text) && s.text[s.pos] == '&' {
		s.pos++
	}
	if s.joined = c == '&' && double; !s.joined {
		s.masked()
	}
}

// masked says of the commands so far that their end is not the text's.
func (s *shell) masked() {
	for i := s.first; i < len(*s.all); i++ {
		(*s.all)[i].alone = false
	}
	s.first = len(*s.all)
}

// redirect reads a redirection and its target.
func (s *shell) redirect() {
	start := s.pos
	for s.pos < len(s.text) && strings.IndexByte("<>&|", s.text[s.pos]) >= 0 && s.pos-start < 3 {
		s.pos++
	}
	sign := s.text[start:s.pos]
	if s.pos < len(s.text) && s.text[s.pos] == '(' && (sign == "<" || sign == ">") { // a process in place of a file
		s.pos++
		s.group(')')
		return
	}
	doc := hereDoc{of: -1}
	if sign == "<<" {
		if s.pos < len(s.text) && s.text[s.pos] == '-' {
			doc.dash = true
			s.pos++
		}
	}
	for s.pos < len(s.text) && (s.text[s.pos] == ' ' || s.text[s.pos] == '\t') {
		s.pos++
	}
	target, _ := s.word()
	switch {
	case sign == "<<" && target != "":
		doc.end = target
		s.docs = append(s.docs, doc)
	case strings.HasSuffix(sign, "&") && (digits(target) || target == "-"): // another of its outputs
	case strings.Contains(sign, ">") && target != "/dev/null":
		s.now.writes = append(s.now.writes, within(s.dir, target))
	}
}

// readDocs reads the here-documents of the line that has ended.
func (s *shell) readDocs() {
	for _, doc := range s.docs {
		var body strings.Builder
		for s.pos < len(s.text) {
			line := s.text[s.pos:]
			if n := strings.IndexByte(line, '\n'); n >= 0 {
				line = line[:n]
			}
			s.pos = min(s.pos+len(line)+1, len(s.text))
			plain := strings.TrimRight(line, "\r")
			if doc.dash {
				plain = strings.TrimLeft(plain, "\t")
			}
			if plain == doc.end {
				break
			}
			body.WriteString(line + "\n")
		}
		if doc.of >= 0 && doc.of < len(*s.all) {
			c := &(*s.all)[doc.of]
			c.stdin = body.String()
			if slices.Contains(shells, c.words[0]) && len(behindOptions(c.words[1:], nil)) == 0 {
				readShell(c.stdin, c.dir, s.depth+1, s.all)
			}
		}
	}
	s.docs = nil
}

// word reads one, and reports whether a part of it was quoted. Commands inside of it are read too.
func (s *shell) word() (text string, quoted bool) {
	var b strings.Builder
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		switch {
		case strings.IndexByte(" \t\r\n;&|()<>", c) >= 0 || c == '`' && s.closing == '`':
			return b.String(), quoted
		case c == '\'':
			quoted = true
			s.pos++
			s.literal(&b)
		case c == '"':
			quoted = true
			s.pos++
			s.quoted(&b)
		case c == '\\':
			s.pos++
			if s.pos < len(s.text) && s.text[s.pos] != '\n' {
				b.WriteByte(s.text[s.pos])
			}
			s.pos = min(s.pos+1, len(s.text))
		case c == '$' || c == '`':
			s.expansion(&b)
		default:
			b.WriteByte(c)
			s.pos++
		}
	}
	return b.String(), quoted
}

func (s *shell) literal(b *strings.Builder) {
	n := strings.IndexByte(s.text[s.pos:], '\'')
	if n < 0 {
		n = len(s.text) - s.pos
	}
	b.WriteString(s.text[s.pos : s.pos+n])
	s.pos = min(s.pos+n+1, len(s.text))
}

// quoted reads up to a closing double quote.
func (s *shell) quoted(b *strings.Builder) {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case '"':
			s.pos++
			return
		case '\\':
			s.pos++
			if s.pos < len(s.text) {
				b.WriteByte(s.text[s.pos])
				s.pos++
			}
		case '$', '`':
			s.expansion(b)
		default:
			b.WriteByte(c)
			s.pos++
		}
	}
}

// expansion reads what begins with $ or a backtick. Its value is not known: a * stands for it. How commands in it end is not how the text ends.
func (s *shell) expansion(b *strings.Builder) {
	before := len(*s.all)
	defer func() {
		for i := before; i < len(*s.all); i++ {
			(*s.all)[i].alone = false
		}
	}()
	rest := s.text[s.pos:]
	switch {
	case rest[0] == '`':
		s.pos++
		s.group('`')
		b.WriteByte('*')
	case strings.HasPrefix(rest, "$(("):
		if n := strings.Index(rest, "))"); n >= 0 {
			s.pos += n + 2
		} else {
			s.pos = len(s.text)
		}
		b.WriteByte('*')
	case strings.HasPrefix(rest, "$("):
		s.pos += 2
		s.group(')')
		b.WriteByte('*')
	case strings.HasPrefix(rest, "${"):
		if n := strings.IndexByte(rest, '}'); n >= 0 {
			s.pos += n + 1
		} else {
			s.pos = len(s.text)
		}
		b.WriteByte('*')
	case strings.HasPrefix(rest, "$'"):
		s.pos += 2
		for s.pos < len(s.text) && s.text[s.pos] != '\'' {
			if s.text[s.pos] == '\\' {
				s.pos++
			}
			if s.pos < len(s.text) {
				b.WriteByte(s.text[s.pos])
				s.pos++
			}
		}
		s.pos = min(s.pos+1, len(s.text))
	default:
		b.WriteByte('$')
		s.pos++
	}
}

// end adds the command that was read, if there is one.
func (s *shell) end() {
	now := s.now
	s.now = command{}
	if len(*s.all) >= maxCommands {
		return
	}
	now.words = withoutPrefixes(now.words)
	if len(now.words) == 0 {
		return
	}
	s.joined = false
	now.dir, now.alone = s.dir, true
	for i := range s.docs {
		if s.docs[i].of < 0 {
			s.docs[i].of = len(*s.all)
		}
	}
	if inner, ok := script(now.words); ok {
		before := len(*s.all)
		readShell(inner, s.dir, s.depth+1, s.all)
		if len(*s.all) > before {
			(*s.all)[before].writes = append((*s.all)[before].writes, now.writes...)
		}
		return
	}
	if now.words[0] == "cd" || now.words[0] == "pushd" {
		if len(now.words) > 1 && !strings.HasPrefix(now.words[len(now.words)-1], "-") {
			s.dir = within(s.dir, now.words[len(now.words)-1])
		}
		return
	}
	*s.all = append(*s.all, now)
}

// within is a directory as seen from another.
func within(dir, next string) string {
	if next == "" || filepath.IsAbs(next) || dir == "" {
		return next
	}
	return filepath.Join(dir, next)
}

var shells = []string{"sh", "bash", "zsh", "dash", "ksh"}

// script returns the text that a command such as sh -c or eval runs.
func script(words []string) (text string, ok bool) {
	switch words[0] {
	case "eval":
		return strings.Join(words[1:], " "), true
	default:
		if !slices.Contains(shells, words[0]) {
			return "", false
		}
		for i, word := range words[1:] {
			if len(word) > 1 && word[0] == '-' && word[1] != '-' && strings.HasSuffix(word, "c") && i+2 < len(words) {
				return words[i+2], true
			}
			if !strings.HasPrefix(word, "-") {
				break
			}
		}
	}
	return "", false
}

// keywords may stand where a command begins.
var keywords = []string{"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "time", "coproc"}

// runners run the command behind their options: those of the value take a word each. An operand comes before the command.
var runners = map[string]struct {
	values   []string
	operands int
}{
	"env": {values: []string{"-u", "--unset", "-C", "--chdir", "-S", "--split-string"}}, "sudo": {values: []string{"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T"}},
	"doas": {values: []string{"-u", "-C"}}, "nice": {values: []string{"-n", "--adjustment"}}, "ionice": {values: []string{"-c", "-n", "-p"}},
	"timeout": {values: []string{"-s", "--signal", "-k", "--kill-after"}, operands: 1}, "stdbuf": {values: []string{"-i", "-o", "-e"}},
	"xargs": {values: []string{"-I", "-n", "-P", "-d", "-L", "-s", "-a", "-E"}},
	"nohup": {}, "command": {}, "exec": {values: []string{"-a"}}, "builtin": {}, "setsid": {}, "time": {values: []string{"-o", "-f"}},
	"npx": {values: []string{"-p", "--package"}}, "bunx": {},
}

// throughs are runners of two words.
var throughs = []string{"uv run", "poetry run", "pipenv run", "hatch run", "rye run", "pdm run", "pnpm exec", "pnpm dlx", "npm exec", "yarn exec", "yarn dlx", "bundle exec"}

// withoutPrefixes leaves out what stands before a command: keywords, assignments, and the commands that run it. The command's own word is its base name.
func withoutPrefixes(words []string) []string {
	for len(words) > 0 {
		base := strings.TrimSuffix(filepath.Base(words[0]), ".exe")
		runner, runs := runners[base]
		switch {
		case slices.Contains(keywords, words[0]) || assignment(words[0]):
			words = words[1:]
		case runs && (base != "command" || len(words) < 2 || !strings.HasPrefix(words[1], "-")): // command -v only asks
			words = behindOptions(words[1:], runner.values)
			words = words[min(runner.operands, len(words)):]
		case len(words) > 1 && slices.Contains(throughs, base+" "+words[1]):
			words = behindOptions(words[2:], nil)
		case words[0] == "":
			return nil
		default:
			return append([]string{base}, words[1:]...)
		}
	}
	return nil
}

// behindOptions leaves out options, each with its value if it takes one.
func behindOptions(words, values []string) []string {
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		n := 1
		if slices.Contains(values, words[0]) {
			n = 2
		}
		if words[0] == "--" {
			return words[1:]
		}
		words = words[min(n, len(words)):]
	}
	return words
}

// assignment reports whether a word sets a variable.
func assignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	name = strings.TrimSuffix(name, "+")
	return ok && name != "" && strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == "" && !digits(name[:1])
}

// commits reports whether a command makes a commit, or names one.
func (c command) commits() bool {
	switch c.words[0] {
	case "git":
		words := behindOptions(c.words[1:], []string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env"})
		return len(words) > 0 && words[0] == "commit"
	case "jj":
		words := behindOptions(c.words[1:], []string{"-R", "--repository", "--at-operation", "--at-op", "--color", "--config", "--config-toml", "--config-file"})
		return len(words) > 0 && slices.Contains([]string{"commit", "ci", "describe", "desc", "new"}, words[0])
	}
	return false
}

// looking are commands that change nothing, and of two words where the first has others.
var looking = []string{"ls", "cat", "head", "tail", "less", "more", "nl", "bat", "grep", "egrep", "fgrep", "rg", "ag", "find", "fd", "wc", "pwd", "echo", "printf",
	"which", "whereis", "type", "file", "stat", "du", "df", "tree", "date", "printenv", "whoami", "id", "uname", "hostname", "ps", "sort", "uniq", "cut", "tr", "awk",
	"jq", "diff", "cmp", "true", "false", "test", "[", "[[", "sleep", "basename", "dirname", "realpath", "readlink", "xxd", "od", "sha256sum", "md5sum", "set", "export",
	"exit", "popd", "for", "case", "esac", "read", "wait", "git status", "git diff", "git log", "git show", "git blame", "git grep", "git branch", "git ls-files", "git rev-parse", "git remote",
	"git add", "git commit", "git push", "git fetch", "go vet", "go list", "go doc", "go env", "go version", "go build", "cargo check", "cargo build", "cargo clippy"}

// changes reports whether a command may have changed a file that tests depend on.
func (c command) changes() bool {
	if len(c.writes) > 0 || slices.ContainsFunc(c.words, func(w string) bool { return w == "-delete" || w == "-exec" || w == "-execdir" }) {
		return true
	}
	if slices.Contains(looking, c.words[0]) {
		return false
	}
	if c.words[0] == "sed" {
		return slices.ContainsFunc(c.words, func(w string) bool { return strings.HasPrefix(w, "-i") || strings.HasPrefix(w, "--in-place") })
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
	if c.words[0] == "sed" { // its script comes first
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
