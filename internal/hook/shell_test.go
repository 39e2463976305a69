package hook

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestShellTextsAreReadAsCommands(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"ls -la":                                   {"ls -la"},
		`echo "git commit"`:                        {"echo git commit"},
		`echo 'a; git commit'`:                     {"echo a; git commit"},
		"a && b || c; d | e & f":                   {"a", "b", "c", "d", "e", "f"},
		"a\nb # c; d\ne":                           {"a", "b", "e"},
		"a \\\n  b":                                {"a b"},
		`sh -c "a 'b c'; d"`:                       {"a b c", "d"},
		`bash -lc 'cd x && a'`:                     {"x: a"},
		"cd x && a; cd y; b; cd /z; c":             {"x: a", "x/y: b", "/z: c"},
		"(cd x && a); b":                           {"x: a", "b"},
		"x=$(a b) c":                               {"a b", "c"},
		"echo \"now $(a `b`)\"":                    {"b", "a *", "echo now *"},
		"A=1 B='2 3' env -u C -i D=4 sudo -u x a":  {"a"},
		"nohup timeout -k 5 60 nice -n 3 a b":      {"a b"},
		"if a; then b; else c; fi":                 {"a", "b", "c"},
		"! a":                                      {"a"},
		"{ a; }":                                   {"a"},
		"/usr/bin/a 2>&1 >/dev/null | b":           {"a", "b"},
		"a > f 2> g &> h >> i":                     {"a > f > g > h > i"},
		"a <<'EOF'\ngit commit\nEOF\nb":            {"a < git commit", "b"},
		"a <<-EOF && c\n\tgit $(commit)\n\tEOF\nb": {"commit", "a < git $(commit)", "c", "b"},
		"bash <<EOF\na\nEOF":                       {"bash < a", "a"},
		"a <<< 'b; c'":                             {"a < b; c"},
		"bash <<< 'a; b'":                          {"bash < a; b", "a", "b"},
		"sudo -s <<E\na\nE":                        {"a"},
		"su x <<E\na\nE":                           {"su x < a", "a"},
		`a $'\x62\u0063\144\n\cx\\'`:               {"a bcd\ncx\\"},
		"flock -w 1 f -c 'a; b'":                   {"a", "b"},
		"timeout 5 -- a b":                         {"a b"},
		"xargs --max-args 1 a b":                   {"a b"},
		"diff <(a) <(b)":                           {"a", "b", "diff"},
		`git commit -m "$(cat <<'EOF'` + "\nIt's done; git push\nEOF\n" +
			`)"`: {"cat < It's done; git push", "git commit -m *"},
		"eval 'a b' c":                     {"a b c"},
		"echo $((1 + 2)) ${x:-y} $'a\\'b'": {"echo * * a'b"},
		"uv run pytest -q":                 {"pytest -q"},
		"npx --yes jest a":                 {"jest a"},
		"command -v git":                   {"command -v git"},
		"bash -eo pipefail -c 'a; b'":      {"a", "b"},
		"bash -e -o pipefail -c -- a":      {"a"},
		"bash +o errexit -ce 'a' b":        {"a"},
		"bash --norc --rcfile x -c 'a b'":  {"a b"},
		"bash -c":                          {"bash -c"},
		"bash -eo pipefail <<'E'\na\nE":    {"bash -eo pipefail < a", "a"},
		"bash -s x <<'E'\na\nE":            {"bash -s x < a", "a"},
		"bash x <<'E'\na\nE":               {"bash x < a"},
		"su -l x -c 'a b'":                 {"a b"},
		"command -- a b":                   {"a b"},
		"command -p a b":                   {"a b"},
		"command -pv a":                    {"command -pv a"},
		"env -S 'a b' c":                   {"a b c"},
		`env -i -S"X=1 a 'b c'" d`:         {"a b c d"},
		"env -u X --split-string='a b'":    {"a b"},
		"env -vS 'a b'":                    {"a b"},
		"env -u S a":                       {"a"},
		"nice -n 5 a":                      {"a"},
		"nice -n5 a":                       {"a"},
		"sudo --user x -n a b":             {"a b"},
		"sudo -nu x a b":                   {"a b"},
		"sudo -ux X=1 a b":                 {"a b"},
		"flock -w 3 f a b":                 {"a b"},
		"taskset -c 0-3 a b":               {"a b"},
		"a <<E\n${{ x.y }}\nE\nb":          {"a < ${{ x.y }}", "b"},
		"a <<E\n`${a.b}`\nE\nb":            {"a < `${a.b}`", "b"},
		"c; a <<-E | d\n\t${a.b}\n\tE\nb":  {"c", "a < ${a.b}", "d", "b"},
		"":                                 {},
		`"`:                                {},
		"$(":                               {"*"},
		"a 'b":                             {"a "},
	} {
		got := []string{}
		for _, c := range parseShell(text) {
			line := strings.Join(c.words, " ")
			if c.dir != "" {
				line = c.dir + ": " + line
			}
			for _, f := range c.writes {
				line += " > " + f
			}
			if c.stdin != "" {
				line += " < " + strings.TrimSpace(c.stdin)
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestWhoseEndIsTheEndOfTheText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a": "a", "a;": "a", "a\n": "a", "a && b": "a b", "a &&\nb": "a b", "a; b": "b", "a || b": "b", "a | b": "b",
		"a & b": "b", "a\nb": "b",
		"(a; b) && c": "b c", "(a && b) | c": "c", "x=$(a) b": "b", "sh -c 'a; b'": "b", "sh -c 'a && b' | c": "c", "a &": "",
		"a || true": "true", "! a": "", "if a; then b; fi": "", "{ a; b; }": "b",
	} {
		var got []string
		for _, c := range parseShell(text) {
			if c.alone {
				got = append(got, c.words[0])
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestWhichCommandsCommit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"git commit -m x", "git -C d commit", "git -c user.name=x --no-pager commit -a", "cd x && git commit",
		`sh -c "git commit"`, "echo $(git commit)",
		"env -u A git commit", "GIT_DIR=x git commit", "git add . && git commit -m 'y'", "/usr/bin/git commit",
		"if true; then git commit; fi",
		"jj commit", "jj describe -m x", "jj -R d new", "sudo git commit", "echo `git commit`",
		"cat <<EOF\n$(git commit)\nEOF", "git \\\n commit", "a | xargs git commit",
		"eval -- git commit", "flock f -c 'git commit'", "xargs --max-args 1 git commit", "timeout 5 -- git commit",
		"git --exec-path /x commit", `git $'\x63ommit'`, "bash <<< 'git commit'", "sudo -s <<E\ngit commit\nE",
		"nohup -- git commit", "sudo -E -- git commit",
	} {
		if !anyCommits(text) {
			t.Errorf("%s: no commit was seen", text)
		}
	}
	for _, text := range []string{
		`echo "git commit"`, "git commit-graph write", "git push", "git log --grep commit", "# git commit", "echo git commit",
		"git -c commit status", "jj log", "jj git push",
		"grep 'git commit' f", "cat <<EOF\ngit commit\nEOF", "git config alias.commit x", "mygit commit",
	} {
		if anyCommits(text) {
			t.Errorf("%s: a commit was seen", text)
		}
	}
}

func anyCommits(text string) bool {
	for _, c := range parseShell(text) {
		if c.commits() {
			return true
		}
	}
	return false
}

func TestWhichCommandsMayChangeFiles(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"sed -i s/a/b/ f", "rm f", "echo a > f", "git checkout f", "npm install",
		"find . -delete", "make", "go generate ./...", "a | tee f"} {
		if !changesFiles(text) {
			t.Errorf("%s: no change", text)
		}
	}
	for _, text := range []string{"ls", "cat a b", "sed -n 1,3p f", "git status", "git diff | head",
		"grep a b 2>/dev/null", "git add . && git commit -m x", "cd x", ""} {
		if changesFiles(text) {
			t.Errorf("%s: a change", text)
		}
	}
}

func changesFiles(text string) bool {
	for _, c := range parseShell(text) {
		if c.changes() {
			return true
		}
	}
	return false
}

func TestWhichFilesACommandShows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"cat a b": "a b", "cd x; head -n 20 a": "x/a", "tail -20 a": "a", "sed -n '1,20p' a": "a", "sed -i s/a/b/ a": "",
		"ls a": "", "cat < a": "", "nl -ba /x/y": "/x/y", "cat -": "", "sed -n 3p": "",
	} {
		var got []string
		for _, c := range parseShell(text) {
			got = append(got, c.shows()...)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestWhatOfATextIsUnread(t *testing.T) {
	t.Parallel()
	deep := "a"
	for range maxShellDepth + 1 {
		deep = "sh -c " + quoteWords([]string{deep})
	}
	for name, c := range map[string]struct {
		text   string
		unread bool
	}{
		"all":                            {"a && b <<E\n$(c)\nE\nd", false},
		"a here-document with a fault":   {"a <<E\n${{ x }}\nE\nb", false},
		"a command in such a one":        {"a <<E\n${{ x }} $(git commit)\nE\nb", true},
		"a fault":                        {"a\nb )\ngit commit", true},
		"a fault in a text of a text":    {"sh -c 'a )'", true},
		"a long text":                    {"a\n#" + strings.Repeat("x", maxShellText) + "\ngit commit", true},
		"many commands":                  {strings.Repeat("a\n", maxCommands+1), true},
		"as many commands as are read":   {strings.Repeat("a\n", maxCommands), false},
		"a deep text":                    {deep, true},
		"many statements":                {strings.Repeat("x=1\n", maxStatements+1), true},
		"as many statements as are read": {strings.Repeat("x=1\n", maxStatements), false},
		"many redirections":              {"a" + strings.Repeat(" >b", maxStatements), true},
		"deep substitutions":             {strings.Repeat("a $(", maxShellDepth+1) + strings.Repeat(")", maxShellDepth+1), true},
		"as deep ones as are read":       {strings.Repeat("a $(", maxShellDepth) + "b" + strings.Repeat(")", maxShellDepth), false},
		"many texts of env":              {strings.Repeat("env -S ", maxShellDepth+1) + "git commit", true},
		"as many as are read":            {strings.Repeat("env -S ", maxShellDepth) + "git commit", false},
		"a command that is a value":      {"$X commit", true},
		"a command of a command":         {"$(which git) commit", true},
		"a value of git":                 {"X=commit; git $X", true},
		"a value of git behind options":  {"git -C d \"$X\"", true},
		"a value behind a runner":        {"sudo $X commit", true},
		"a value among the words":        {"git add $X && ls *", false},
		"a command in a folder":          {"$HOME/bin/a b", false},
		"a text that is not yet at its":  {"if a; then b", false},
	} {
		commands, unread := readShell(c.text)
		if unread != c.unread {
			t.Errorf("%s: unread is %t", name, unread)
		}
		for _, command := range commands {
			if unread && command.alone {
				t.Errorf("%s: how the text ends is how %v ends", name, command.words)
			}
		}
	}
}

// A statement takes at least one byte of a text. A reader that follows more statements than the text has bytes must
// follow some of them repeatedly. A hook that takes too long cannot stop an act.
func TestNoStatementOfATextIsFollowedTwice(t *testing.T) {
	t.Parallel()
	nested := func(begin, end string) string {
		text := "a"
		for i := range maxShellDepth {
			number := strings.NewReplacer("N", strconv.Itoa(i))
			text = number.Replace(begin) + text + number.Replace(end)
		}
		return text
	}
	quoted := "a"
	for range maxShellDepth {
		quoted = "bash -c " + quoteWords([]string{quoted + "; b"})
	}
	for name, text := range map[string]string{
		"substitutions in here-documents of shells": nested("bash <<EN\n$(", ")\nEN\n"),
		"here-documents of shells":                  nested("bash <<EN\n", "\nEN\n"),
		"here-documents of no shell":                nested("cat <<EN\n$(", ")\nEN\n"),
		"here-documents with faults":                nested("bash <<EN\n${{ x }} $(", ")\nEN\n"),
		"here-documents of sudo":                    nested("sudo -s <<EN\n$(", ")\nEN\n"),
		"here-documents of su":                      nested("su x <<EN\n$(", ")\nEN\n"),
		"here-strings":                              nested(`bash <<< "$(`, `)"`),
		"substitutions":                             nested("$(", ")"),
		"substitutions in words":                    nested(`a "${X:-$(`, `)}"`),
		"substitutions of the texts of shells":      nested(`bash -c "$(`, `)"`),
		"substitutions of eval":                     nested(`eval "$(`, `)" "$(b)"`),
		"processes":                                 nested("a <(", ") > >(b)"),
		"processes that are redirected":             nested("a < <(", ")"),
		"functions":                                 nested("fN() { ", "; }; fN; fN"),
		"cases":                                     nested("case $(a) in x) ", ";; esac"),
		"conditions":                                nested("if a; then ", "; else b; fi > f"),
		"loops":                                     nested("for x in $(a); do ", "; done"),
		"texts of shells":                           quoted,
		"eval":                                      strings.Repeat("eval ", 50) + "a",
		"env":                                       strings.Repeat("env -S ", maxShellDepth) + "a",
	} {
		r := shellReader{}
		r.text(text, "", 0, true)
		if r.followed > len(text) || r.followed > maxStatements {
			t.Errorf("%s: %d statements were followed in %d bytes", name, r.followed, len(text))
		}
	}
}

// Parsing ends for any text.
func FuzzShell(f *testing.F) {
	for _, text := range []string{"a && b", "$($($(", "<<<<", "a <<E\nE\n", "`\"$(", "((((", "'", "\\",
		"sh -c 'sh -c \"sh -c a\"'", "eval eval eval", "0&0\xe8", "cat <<E; git commit\n$(\nE", strings.Repeat("(", 1<<17),
		strings.Repeat("a <<E ", 1000)} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) { parseShell(text) })
}
